"""Every label, annotation and name that ties objects to a model, in one place.

Selectors use the `specmodel.dev/` labels only: GitOps tools rewrite `app.kubernetes.io/instance`.
"""

from __future__ import annotations

GROUP = "specmodel.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
MODEL_KIND = "SpeculativeModel"
MODEL_PLURAL = "speculativemodels"
RUN_KIND = "BenchmarkRun"
RUN_PLURAL = "benchmarkruns"

#: The one field manager of every server-side apply.
FIELD_MANAGER = "specmodel-operator"

#: Label on every child: the name of the model that owns it.
MODEL = f"{GROUP}/model"
#: Label on servers and their pods: the revision (10 hex digits) that the pods run. What Services select.
REVISION = f"{GROUP}/revision"
#: Label on servers and runs: the digest (10 hex digits) of the candidate, over what changes tokens, speed or memory.
CANDIDATE = f"{GROUP}/candidate"
#: Label on runs: the digest (10 hex digits) of the workload.
WORKLOAD = f"{GROUP}/workload"
#: Label on servers and their pods: `serve` for a candidate's own Deployment, `measure` for a twin of a serving one.
ROLE = f"{GROUP}/role"
#: Label on benchmark Jobs and their pods: the name of the BenchmarkRun.
RUN = f"{GROUP}/run"
#: Label on preflight Jobs and their pods: the digest (10 hex digits) of what they read.
PREFLIGHT = f"{GROUP}/preflight"

#: Annotation on a server's Deployment: its `Candidate` as JSON, so that an incumbent which the spec no longer names
#: can still be described, compared and scaled.
CANDIDATE_JSON = f"{GROUP}/candidate-json"
#: Annotation on a server's Deployment: hash of the pod template as this operator rendered it. A template rendered by
#: another release of the operator is left alone.
RENDERED = f"{GROUP}/rendered"
#: Annotation on a pod: the time at which it answered a request and its counters moved.
ANSWERED = f"{GROUP}/answered"
#: Annotation on the stable Service: the time (RFC 3339) at which its selector last moved.
MOVED_AT = f"{GROUP}/moved-at"
#: Annotation of a run that `specmodel try` wrote: what a reader of its figures must know of them.
CAVEATS = f"{GROUP}/caveats"
#: Annotation on a benchmark Job: `<uid>/<restarts>` of the engine's pod when the Job was made, so that an engine that
#: died under load is told from one that stumbled before.
ENGINE_PROCESS = f"{GROUP}/engine-process"

NAME = "app.kubernetes.io/name"
INSTANCE = "app.kubernetes.io/instance"
COMPONENT = "app.kubernetes.io/component"
PART_OF = "app.kubernetes.io/part-of"
MANAGED_BY = "app.kubernetes.io/managed-by"

ROLE_SERVE = "serve"
ROLE_MEASURE = "measure"

#: A model's name: a DNS label short enough for `<name>-<10 hex>-<pod suffixes>` to stay within 63 characters.
NAME_MAXIMUM = 40
#: Hex digits of a digest that appear in names and labels.
DIGEST_DIGITS = 10
