package mew

import (
	"errors"
	"fmt"
	"strconv"

	"go.yaml.in/yaml/v4"

	"github.com/agentmesh/agentmesh/node/wire"
)

// The bounds of a space.yaml. Every YAML reader is quadratic in the keys of one mapping.
const (
	maxYAML      = 1 << 20
	maxYAMLDepth = 32
	maxYAMLNodes = 100_000
	maxYAMLKeys  = 5_000
)

// yamlTree reads a YAML text as a tree of JSON values: no aliases, no merges, no tags but those of JSON.
func yamlTree(data []byte) (wire.Value, error) {
	if len(data) > maxYAML {
		return wire.Value{}, fmt.Errorf("larger than %d bytes", maxYAML)
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(data, &doc); err != nil {
		return wire.Value{}, err
	}
	if doc.Kind != yaml.DocumentNode || len(doc.Content) == 0 {
		return wire.Value{}, errors.New("the file is empty")
	}
	r := yamlReader{nodes: maxYAMLNodes}
	return r.value(doc.Content[0], 0)
}

type yamlReader struct{ nodes int }

func yamlFail(n *yaml.Node, text string) error { return fmt.Errorf("line %d: %s", n.Line, text) }

func (r *yamlReader) value(n *yaml.Node, depth int) (wire.Value, error) {
	if r.nodes--; r.nodes < 0 || depth > maxYAMLDepth {
		return wire.Value{}, yamlFail(n, "too much, or nested too deep")
	}
	if n.Kind == yaml.AliasNode || n.Anchor != "" {
		return wire.Value{}, yamlFail(n, "anchors and aliases are not used here")
	}
	switch n.Kind {
	case yaml.MappingNode:
		return r.mapping(n, depth)
	case yaml.SequenceNode:
		out := make([]wire.Value, len(n.Content))
		for i, c := range n.Content {
			var err error
			if out[i], err = r.value(c, depth+1); err != nil {
				return wire.Value{}, err
			}
		}
		return wire.Arr(out...), nil
	}
	return yamlScalar(n)
}

func (r *yamlReader) mapping(n *yaml.Node, depth int) (wire.Value, error) {
	if len(n.Content) > 2*maxYAMLKeys {
		return wire.Value{}, yamlFail(n, "too many keys")
	}
	members := make([]wire.Member, 0, len(n.Content)/2)
	seen := make(map[string]bool, len(n.Content)/2)
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		if key.Kind != yaml.ScalarNode || key.Tag == "!!merge" {
			return wire.Value{}, yamlFail(key, "a key must be a plain text")
		}
		if seen[key.Value] {
			return wire.Value{}, yamlFail(key, "the key stands here twice")
		}
		seen[key.Value] = true
		val, err := r.value(n.Content[i+1], depth+1)
		if err != nil {
			return wire.Value{}, err
		}
		members = append(members, wire.Member{Key: key.Value, Value: val})
	}
	return wire.Obj(members...), nil
}

func yamlScalar(n *yaml.Node) (wire.Value, error) {
	switch n.Tag {
	case "!!str", "!!timestamp":
		return wire.Text(n.Value), nil
	case "!!null":
		return wire.Value{}, nil
	case "!!bool":
		b, err := strconv.ParseBool(n.Value)
		if err != nil {
			return wire.Value{}, yamlFail(n, "not true or false")
		}
		return wire.Bool(b), nil
	case "!!int", "!!float":
		if v, err := wire.ParseForeign([]byte(n.Value), 1, 1); err == nil && v.Kind() == wire.Number {
			return v, nil
		}
		var f float64 // 0x10, .5, 1_000: what YAML reads and JSON does not
		if err := n.Decode(&f); err != nil {
			return wire.Value{}, yamlFail(n, "not a number")
		}
		v, err := wire.ParseForeign(strconv.AppendFloat(nil, f, 'f', -1, 64), 1, 1)
		if err != nil {
			return wire.Value{}, yamlFail(n, "not a number")
		}
		return v, nil
	}
	return wire.Value{}, yamlFail(n, "a tag that is not used here")
}
