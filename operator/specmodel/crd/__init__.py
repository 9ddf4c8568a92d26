"""The CRDs and the reference pages, generated from the wire types.

    api types ──JSON schema──► structural schema ──► crds/*.yaml ──► the chart's copy
                                            └──────► docs/api.md, docs/conditions.md

Generated files are never edited. Nothing here talks to a cluster.
"""
