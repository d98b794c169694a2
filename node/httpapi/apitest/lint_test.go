package apitest

import (
	"regexp"
	"strconv"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"

	"github.com/agentmesh/agentmesh/node/httpapi"
)

// TestRulesOfLinters holds the rules of Redocly and Spectral that the document once broke, or could easily break.
func TestRulesOfLinters(t *testing.T) {
	doc, err := document()
	if err != nil {
		t.Fatal(err)
	}
	if doc.Info.License == nil || doc.Info.Contact == nil || doc.Info.Description == "" || len(doc.Servers) == 0 {
		t.Error("info needs license, contact and description, and the document needs servers")
	}
	ids, tags := map[string]bool{}, map[string]bool{}
	for _, tag := range doc.Tags {
		tags[tag.Name] = tag.Description != ""
	}
	for path, item := range doc.Paths.Map() {
		for method, op := range item.Operations() {
			name := method + " " + path
			if op.Security == nil {
				t.Errorf("%s: no security; write [] if everybody may call it", name)
			} else {
				for _, requirement := range *op.Security {
					for scheme := range requirement {
						if doc.Components.SecuritySchemes[scheme] == nil {
							t.Errorf("%s: no security scheme %s", name, scheme)
						}
					}
				}
			}
			if op.OperationID == "" || ids[op.OperationID] {
				t.Errorf("%s: operationId %q is empty or used before", name, op.OperationID)
			}
			ids[op.OperationID] = true
			if op.Summary == "" || len(op.Tags) == 0 {
				t.Errorf("%s: no summary or no tag", name)
			}
			for _, tag := range op.Tags {
				if !tags[tag] {
					t.Errorf("%s: the tag %s is not described", name, tag)
				}
			}
			refusals := 0
			for status := range op.Responses.Map() {
				if strings.HasPrefix(status, "4") {
					refusals++
				}
			}
			if refusals == 0 {
				t.Errorf("%s: no 4xx response", name)
			}
		}
	}
}

// TestNullableHasType: a schema that is nullable has a type, and every component is used.
func TestNullableHasType(t *testing.T) {
	text := string(httpapi.OpenAPI())
	var root yaml.Node
	if err := yaml.Unmarshal([]byte(text), &root); err != nil {
		t.Fatal(err)
	}
	var walk func(n *yaml.Node)
	walk = func(n *yaml.Node) {
		keys := map[string]bool{}
		if n.Kind == yaml.MappingNode {
			for i := 0; i < len(n.Content); i += 2 {
				keys[n.Content[i].Value] = true
			}
		}
		if keys["nullable"] && !keys["type"] {
			t.Error("nullable without type at line " + strconv.Itoa(n.Line))
		}
		for _, child := range n.Content {
			walk(child)
		}
	}
	walk(&root)
	doc, err := document()
	if err != nil {
		t.Fatal(err)
	}
	used := map[string]bool{}
	for _, ref := range regexp.MustCompile(`#/components/([a-zA-Z]+/[A-Za-z0-9]+)`).FindAllStringSubmatch(text, -1) {
		used[ref[1]] = true
	}
	for name := range doc.Components.Schemas {
		if !used["schemas/"+name] {
			t.Errorf("the schema %s is not used", name)
		}
	}
	for name := range doc.Components.Parameters {
		if !used["parameters/"+name] {
			t.Errorf("the parameter %s is not used", name)
		}
	}
	for name := range doc.Components.Responses {
		if !used["responses/"+name] {
			t.Errorf("the response %s is not used", name)
		}
	}
	for name := range doc.Components.Headers {
		if !used["headers/"+name] {
			t.Errorf("the header %s is not used", name)
		}
	}
}
