{{- define "labels" -}}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
round: {{ .Values.round }}
{{- end }}

{{- define "pod" -}}
metadata:
  labels: {app: {{ .app }}}
spec:
  terminationGracePeriodSeconds: 1
  nodeSelector: {{- toYaml .root.Values.nodeSelector | nindent 4 }}
  tolerations: {{- toYaml .root.Values.tolerations | nindent 4 }}
  containers:
  - name: iis
    image: {{ .root.Values.image }}
    ports: [{name: http, containerPort: 80}]
    resources: {requests: {cpu: 50m, memory: 32Mi}}
{{- end }}

{{- define "task" -}}
spec:
  restartPolicy: Never
  nodeSelector: {{- toYaml .Values.nodeSelector | nindent 4 }}
  tolerations: {{- toYaml .Values.tolerations | nindent 4 }}
  containers:
  - name: task
    image: {{ .Values.shell }}
    command: [cmd, /c, echo done]
{{- end }}
