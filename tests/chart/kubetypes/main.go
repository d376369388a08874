// Reads Kubernetes objects as YAML from standard input and says which have fields, or values, that Kubernetes'
// own types do not have. The API server would leave such a field out, or refuse it.
package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"

	admission "k8s.io/api/admissionregistration/v1"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	rbac "k8s.io/api/rbac/v1"
	resource "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/yaml"
)

func main() {
	scheme := runtime.NewScheme()
	kinds := runtime.NewSchemeBuilder(
		admission.AddToScheme, apps.AddToScheme, core.AddToScheme, rbac.AddToScheme, resource.AddToScheme,
	)
	if err := kinds.AddToScheme(scheme); err != nil {
		panic(err)
	}
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
	documents := yaml.NewYAMLReader(bufio.NewReader(os.Stdin))
	wrong := false
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			_, _, err = decoder.Decode(document, nil, nil)
		}
		if err != nil {
			wrong = true
			fmt.Println(err)
		}
	}
	if wrong {
		os.Exit(1)
	}
}
