module spillway.example/chartcheck

go 1.25.0

tool (
	github.com/rhysd/actionlint/cmd/actionlint
	github.com/yannh/kubeconform/cmd/kubeconform
	helm.sh/helm/v3/cmd/helm
)

require (
	github.com/rhysd/actionlint v1.7.12
	github.com/yannh/kubeconform v0.7.0
	helm.sh/helm/v3 v3.20.2
	k8s.io/api v0.35.4
	k8s.io/apimachinery v0.35.4
	k8s.io/pod-security-admission v0.35.4
	sigs.k8s.io/yaml v1.6.0
)
