{{- /*
Exactly what the operator does, and nothing more. tests/unit/test_chart.py holds the reasons beside each right.
*/}}
{{- define "specmodel.rules" -}}
- apiGroups: [specmodel.dev]
  resources: [speculativemodels]
  verbs: [get, list, watch]
- apiGroups: [specmodel.dev]
  resources: [benchmarkruns]
  verbs: [get, list, watch, create, patch]
- apiGroups: [specmodel.dev]
  resources: [speculativemodels/status, benchmarkruns/status]
  verbs: [patch]
# Children block the deletion of their owner, which some clusters allow only with this right on the owner.
- apiGroups: [specmodel.dev]
  resources: [speculativemodels/finalizers, benchmarkruns/finalizers]
  verbs: [update]
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [batch]
  resources: [jobs]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [services, serviceaccounts]
  verbs: [get, list, create, patch, delete]
# The account of a benchmark Job may get its own run and patch its status: rights that the operator holds itself.
- apiGroups: [rbac.authorization.k8s.io]
  resources: [roles, rolebindings]
  verbs: [get, list, create, patch, delete]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, patch]
{{- if .Values.rbac.engineLogs }}
# Why an engine ended stands far above the last lines that the kubelet keeps.
- apiGroups: [""]
  resources: [pods/log]
  verbs: [get]
{{- end }}
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get]
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices]
  verbs: [list, watch]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create]
{{- end -}}
