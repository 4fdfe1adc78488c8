{{- define "spillway.name" -}}
{{- $name := .Release.Name | replace "." "-" -}}
{{- if contains .Chart.Name $name -}}
{{ $name | trunc 52 | trimSuffix "-" }}
{{- else -}}
{{ printf "%s-%s" $name .Chart.Name | trunc 52 | trimSuffix "-" }}
{{- end -}}
{{- end -}}

{{- define "spillway.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* Labels of the pods that are cells, and of those of the router. */}}
{{- define "spillway.cell" -}}
{{ include "spillway.selector" . }}
app.kubernetes.io/component: cell
{{- end -}}
{{- define "spillway.router" -}}
{{ include "spillway.selector" . }}
app.kubernetes.io/component: router
{{- end -}}

{{- define "spillway.labels" -}}
{{ include "spillway.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | replace "+" "_" | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end -}}

{{/* Number of pods: cells that get webhooks, and those that only deliver what they have. */}}
{{- define "spillway.pods" -}}
{{ add .Values.cells .Values.drainingCells }}
{{- end -}}

{{/* Not empty if the router decides which cell gets a webhook. */}}
{{- define "spillway.isRouted" -}}
{{- if gt (int (include "spillway.pods" .)) 1 }}true{{ end -}}
{{- end -}}

{{- define "spillway.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{/* Environment of a process: ours first, then the settings of the values, which win. */}}
{{- define "spillway.env" -}}
{{- $env := merge (dict) (.settings | default dict) .own -}}
{{- range $key, $value := $env }}
- name: {{ $key }}
  {{- /* A number of the values is a float, which would be written as 1e+06. */}}
  {{- if and (kindIs "float64" $value) (eq $value (floor $value)) }}
  value: {{ $value | int64 | toString | quote }}
  {{- else }}
  value: {{ $value | toString | quote }}
  {{- end }}
{{- end -}}
{{- end -}}

{{/* Settings of the archive that are in a Secret, for those that have access to it. */}}
{{- define "spillway.archiveSecret" -}}
{{- if and .Values.archiver.enabled .Values.archiver.existingSecret -}}
envFrom:
  - secretRef:
      name: {{ .Values.archiver.existingSecret }}
{{- end -}}
{{- end -}}

{{/* What the restricted Pod Security Standard asks of a pod, and of each container. */}}
{{- define "spillway.restrictedPod" -}}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile:
    type: RuntimeDefault
{{- end -}}
{{- define "spillway.restricted" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
{{- end -}}

{{/* Where a pod may run. */}}
{{- define "spillway.placement" -}}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- end -}}

{{- define "spillway.livez" -}}
livenessProbe:
  httpGet:
    path: /livez
    port: {{ . }}
  periodSeconds: 5
  timeoutSeconds: 3
  failureThreshold: 3
{{- end -}}
