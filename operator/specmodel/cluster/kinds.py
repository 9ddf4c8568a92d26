"""Where each kind lives in the API. The operator knows its kinds by name, so it asks no server to discover them.

Discovery would cost a request per API group, fail with any broken aggregated API, and cache into a world-writable
folder.
"""

from __future__ import annotations

from dataclasses import dataclass

from specmodel.api.labels import API_VERSION, MODEL_KIND, MODEL_PLURAL, RUN_KIND, RUN_PLURAL


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectKind:
    """One kind: its API version, its plural, and whether its objects live in a namespace."""

    kind: str
    api_version: str
    plural: str
    is_namespaced: bool = True

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """Return the path of an object, of a namespace's objects, or of all objects of the kind."""
        root = f"/api/{self.api_version}" if "/" not in self.api_version else f"/apis/{self.api_version}"
        parts = [root]
        if self.is_namespaced and namespace is not None:
            parts.append(f"namespaces/{namespace}")
        parts.append(self.plural)
        parts.extend(part for part in (name, subresource) if part is not None)
        return "/".join(parts)


def _table(*rows: ObjectKind) -> dict[str, ObjectKind]:
    return {row.kind: row for row in rows}


#: Every kind that the operator reads or writes.
KINDS: dict[str, ObjectKind] = _table(
    ObjectKind(kind=MODEL_KIND, api_version=API_VERSION, plural=MODEL_PLURAL),
    ObjectKind(kind=RUN_KIND, api_version=API_VERSION, plural=RUN_PLURAL),
    ObjectKind(kind="Deployment", api_version="apps/v1", plural="deployments"),
    ObjectKind(kind="Job", api_version="batch/v1", plural="jobs"),
    ObjectKind(kind="Service", api_version="v1", plural="services"),
    ObjectKind(kind="ServiceAccount", api_version="v1", plural="serviceaccounts"),
    ObjectKind(kind="ConfigMap", api_version="v1", plural="configmaps"),
    ObjectKind(kind="Pod", api_version="v1", plural="pods"),
    ObjectKind(kind="Node", api_version="v1", plural="nodes", is_namespaced=False),
    ObjectKind(kind="Role", api_version="rbac.authorization.k8s.io/v1", plural="roles"),
    ObjectKind(kind="RoleBinding", api_version="rbac.authorization.k8s.io/v1", plural="rolebindings"),
    ObjectKind(kind="EndpointSlice", api_version="discovery.k8s.io/v1", plural="endpointslices"),
    ObjectKind(kind="Event", api_version="events.k8s.io/v1", plural="events"),
    ObjectKind(kind="Lease", api_version="coordination.k8s.io/v1", plural="leases"),
)
