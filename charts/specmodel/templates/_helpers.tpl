{{- /* Names and labels of the operator's own objects. */}}
{{- define "specmodel.fullname" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- /* Name of what is not in a namespace: two releases of one name in two namespaces must not share it. */}}
{{- define "specmodel.clusterName" -}}
{{- printf "%s-%s" .Release.Namespace (include "specmodel.fullname" .) -}}
{{- end -}}

{{- define "specmodel.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "specmodel.fullname" .) -}}
{{- else -}}
{{- required "serviceAccount.create is false: name an existing one in serviceAccount.name" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "specmodel.leaseName" -}}
{{- .Values.lease.name | default (include "specmodel.fullname" .) -}}
{{- end -}}

{{- /* Selected on, so never changed, and never app.kubernetes.io/instance, which GitOps tools rewrite. */}}
{{- define "specmodel.selectorLabels" -}}
app.kubernetes.io/name: specmodel
specmodel.dev/operator: {{ include "specmodel.fullname" . }}
{{- end -}}

{{- define "specmodel.labels" -}}
{{ include "specmodel.selectorLabels" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
app.kubernetes.io/part-of: specmodel
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "specmodel.watchNamespaces" -}}
{{- $namespaces := .Values.watchNamespaces -}}
{{- if not $namespaces -}}
{{- $namespaces = list .Release.Namespace -}}
{{- end -}}
{{- toJson $namespaces -}}
{{- end -}}
