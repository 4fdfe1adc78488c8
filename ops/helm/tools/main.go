// Checks of the chart that no tool brings:
//
//	chartcheck schemas SWAGGER OUT [CRD...]   writes strict JSON schemas, a file for each kind, from the
//	                                          OpenAPI description of Kubernetes and from CRDs
//	chartcheck restricted <MANIFESTS          checks every pod template against the restricted Pod Security
//	                                          Standard
//	chartcheck pods <MANIFESTS                writes a Pod for every pod template, as JSON
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
	"sigs.k8s.io/yaml"
)

type object = map[string]any

func main() {
	err := errors.New("usage: chartcheck schemas SWAGGER OUT [CRD...] | restricted | pods")
	switch {
	case len(os.Args) > 3 && os.Args[1] == "schemas":
		err = schemas(os.Args[2], os.Args[3], os.Args[4:])
	case len(os.Args) == 2 && os.Args[1] == "restricted":
		err = restricted(os.Stdin)
	case len(os.Args) == 2 && os.Args[1] == "pods":
		err = pods(os.Stdin)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "chartcheck:", err)
		os.Exit(1)
	}
}

// schemas writes OUT/KIND-GROUP-VERSION.json, as kubeconform's {{.ResourceKind}}{{.KindSuffix}} names it.
func schemas(swagger, out string, crds []string) error {
	text, err := os.ReadFile(swagger)
	if err != nil {
		return err
	}
	var description struct {
		Definitions map[string]object `json:"definitions"`
	}
	if err := json.Unmarshal(text, &description); err != nil {
		return err
	}
	for name, definition := range description.Definitions {
		closeObjects(definition)
		switch {
		case strings.HasSuffix(name, ".resource.Quantity"):
			definition["type"] = []any{"string", "number"}
		case definition["format"] == "int-or-string":
			definition["type"] = []any{"string", "integer"}
		}
	}
	for _, definition := range description.Definitions {
		kinds, _ := definition["x-kubernetes-group-version-kind"].([]any)
		// Several: options that are the same in all groups, and no object of its own.
		if len(kinds) != 1 {
			continue
		}
		kind := kinds[0].(object)
		group, version, name := kind["group"].(string), kind["version"].(string), kind["kind"].(string)
		schema := object{"definitions": closure(definition, description.Definitions)}
		for key, value := range definition {
			schema[key] = value
		}
		if err := write(out, schema, group, version, name); err != nil {
			return err
		}
	}
	for _, crd := range crds {
		if err := custom(crd, out); err != nil {
			return fmt.Errorf("%s: %w", crd, err)
		}
	}
	return nil
}

func custom(path, out string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var crd struct {
		Spec struct {
			Group string `json:"group"`
			Names struct {
				Kind string `json:"kind"`
			} `json:"names"`
			Versions []struct {
				Name   string `json:"name"`
				Schema struct {
					OpenAPIV3Schema object `json:"openAPIV3Schema"`
				} `json:"schema"`
			} `json:"versions"`
		} `json:"spec"`
	}
	if err := yaml.Unmarshal(text, &crd); err != nil {
		return err
	}
	for _, version := range crd.Spec.Versions {
		schema := version.Schema.OpenAPIV3Schema
		closeObjects(schema)
		if err := write(out, schema, crd.Spec.Group, version.Name, crd.Spec.Names.Kind); err != nil {
			return err
		}
	}
	return nil
}

func write(out string, schema object, group, version, kind string) error {
	apiVersion := version
	name := kind
	if group != "" {
		apiVersion = group + "/" + version
		name += "-" + strings.Split(group, ".")[0]
	}
	name += "-" + version + ".json"
	if properties, ok := schema["properties"].(object); ok {
		properties["apiVersion"] = object{"enum": []any{apiVersion}}
		properties["kind"] = object{"enum": []any{kind}}
	}
	text, err := json.Marshal(schema)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(out, strings.ToLower(name)), text, 0o644)
}

// closeObjects forbids properties that a schema does not name, in it and below.
func closeObjects(schema any) {
	switch schema := schema.(type) {
	case object:
		properties, named := schema["properties"].(object)
		_, others := schema["additionalProperties"]
		open := schema["x-kubernetes-preserve-unknown-fields"] == true
		if named && !others && !open {
			schema["additionalProperties"] = false
		}
		// A validator does not know Kubernetes' formats, such as int-or-string: see schemas.
		if format, ok := schema["format"].(string); ok && format != "int-or-string" {
			delete(schema, "format")
		}
		if kind, ok := schema["type"].(string); ok && schema["nullable"] == true {
			schema["type"] = []any{kind, "null"}
		}
		for _, property := range properties {
			closeObjects(property)
		}
		for _, key := range []string{"items", "additionalProperties"} {
			closeObjects(schema[key])
		}
	case []any:
		for _, one := range schema {
			closeObjects(one)
		}
	}
}

// closure returns the definitions that a schema refers to, by themselves or through others.
func closure(schema object, all map[string]object) object {
	found := object{}
	var visit func(any)
	visit = func(value any) {
		switch value := value.(type) {
		case object:
			if reference, ok := value["$ref"].(string); ok {
				name := strings.TrimPrefix(reference, "#/definitions/")
				if _, ok := found[name]; !ok {
					found[name] = all[name]
					visit(all[name])
				}
			}
			for _, one := range value {
				visit(one)
			}
		case []any:
			for _, one := range value {
				visit(one)
			}
		}
	}
	visit(schema)
	return found
}

// podTemplates calls a function for the pod template of each manifest that has one.
func podTemplates(manifests io.Reader, each func(name string, template corev1.PodTemplateSpec) error) error {
	text, err := io.ReadAll(manifests)
	if err != nil {
		return err
	}
	found := 0
	for _, document := range bytes.Split(append([]byte("\n"), text...), []byte("\n---\n")) {
		var workload struct {
			Kind     string            `json:"kind"`
			Metadata metav1.ObjectMeta `json:"metadata"`
			Spec     struct {
				Template *corev1.PodTemplateSpec `json:"template"`
			} `json:"spec"`
		}
		// Specs of other kinds may have a template of another type.
		var about metav1.TypeMeta
		if err := yaml.Unmarshal(document, &about); err != nil {
			return err
		}
		switch about.Kind {
		case "StatefulSet", "Deployment", "DaemonSet", "Job", "ReplicaSet":
		default:
			continue
		}
		if err := yaml.Unmarshal(document, &workload); err != nil {
			return err
		}
		if workload.Spec.Template == nil {
			return fmt.Errorf("%s %s has no pod template", workload.Kind, workload.Metadata.Name)
		}
		found++
		if err := each(workload.Metadata.Name, *workload.Spec.Template); err != nil {
			return err
		}
	}
	if found == 0 {
		return errors.New("there is no pod template")
	}
	return nil
}

func restricted(manifests io.Reader) error {
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		return err
	}
	level := api.LevelVersion{Level: api.LevelRestricted, Version: api.LatestVersion()}
	return podTemplates(manifests, func(name string, template corev1.PodTemplateSpec) error {
		results := evaluator.EvaluatePod(level, &template.ObjectMeta, &template.Spec)
		if result := policy.AggregateCheckResults(results); !result.Allowed {
			return fmt.Errorf("%s is not restricted: %s", name, result.ForbiddenDetail())
		}
		return nil
	})
}

func pods(manifests io.Reader) error {
	encoder := json.NewEncoder(os.Stdout)
	return podTemplates(manifests, func(name string, template corev1.PodTemplateSpec) error {
		template.ObjectMeta.Name = name + "-0"
		// A controller of StatefulSets puts the claim in the place of its template.
		template.Spec.Volumes = append(template.Spec.Volumes, corev1.Volume{
			Name: "data",
			VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data-" + name + "-0"},
			},
		})
		return encoder.Encode(corev1.Pod{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
			ObjectMeta: template.ObjectMeta,
			Spec:       template.Spec,
		})
	})
}
