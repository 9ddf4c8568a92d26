"""How we talk to Kubernetes: the real implementation of the port. The only importer of `kubernetes`.

    client ── one request, with a deadline ──► JSON or ApiError
    reading ─ pure: wire objects ──► values of the domain
    difference ─ pure: is a write needed?
    observe, write, ask ─ the port's methods;  port ─ the port;  lease ─ who may write at all

Nothing here decides.
"""
