{{- define "plait.name" -}}
{{- if contains "plait" .Release.Name }}{{ .Release.Name | trunc 63 | trimSuffix "-" }}{{ else }}{{ printf "%s-plait" .Release.Name | trunc 63 | trimSuffix "-" }}{{ end -}}
{{- end }}

{{- define "plait.selector" -}}
app.kubernetes.io/name: plait
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "plait.labels" -}}
{{ include "plait.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}
