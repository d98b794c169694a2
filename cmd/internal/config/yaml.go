package config

import (
	"bytes"
	"cmp"
	"encoding"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/agentmesh/agentmesh/node/wire"
)

// maxConfig bounds the configuration file.
const maxConfig = 1 << 20

func loadFile(root reflect.Value, file string, data []byte) error {
	n, err := parseYAML(file, data)
	if err != nil || n == nil {
		return err
	}
	return (&decoder{file: file}).decode(n, root, "")
}

// parseYAML returns the root node of a text, or nil if the text is empty.
func parseYAML(file string, data []byte) (*yaml.Node, error) {
	if len(data) > maxConfig {
		return nil, fmt.Errorf("%s: larger than %d bytes", file, maxConfig)
	}
	var doc, second yaml.Node
	d := yaml.NewDecoder(bytes.NewReader(data))
	err := d.Decode(&doc)
	if err == nil {
		if err = d.Decode(&second); err == nil {
			return nil, fmt.Errorf("%s:%d: a second document begins here: write all keys into the first", file, append(second.Content, &second)[0].Line)
		}
	}
	if !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if doc.Kind != yaml.DocumentNode || len(doc.Content) == 0 {
		return nil, nil
	}
	return doc.Content[0], nil
}

// decoder fills Go values from YAML nodes. It works on nodes so that every error names its line.
type decoder struct{ file string }

func (d *decoder) fail(n *yaml.Node, key, format string, args ...any) error {
	return fmt.Errorf("%s:%d: %s: %s", d.file, n.Line, key, fmt.Sprintf(format, args...))
}

// isTable reports whether a value of type t is a table in the file: keys with values.
func isTable(t reflect.Type) bool { return t.Kind() == reflect.Struct && !isText(t) }

// isText reports whether a value of type t parses a text by itself.
func isText(t reflect.Type) bool {
	return reflect.PointerTo(t).Implements(reflect.TypeFor[encoding.TextUnmarshaler]())
}

// decode sets v from a node. key is the configuration key of v. If the node has no value, such as a table whose keys
// are all commented out, v keeps its default instead of becoming 0, which would switch a limit off.
func (d *decoder) decode(n *yaml.Node, v reflect.Value, key string) error {
	switch {
	case n == nil || n.Tag == "!!null":
		return nil
	case n.Kind == yaml.AliasNode || n.Anchor != "":
		return d.fail(n, key, "anchors and aliases are not supported: write the value out")
	case isTable(v.Type()):
		return d.decodeTable(n, v, key)
	case v.Kind() == reflect.Slice && !(isText(v.Type()) && n.Kind == yaml.ScalarNode): // a list, unless v parses this text by itself
		return d.decodeList(n, v, key)
	case v.Kind() == reflect.Map:
		return d.decodeMap(n, v, key)
	case n.Kind != yaml.ScalarNode:
		return d.fail(n, key, "needs a single value")
	}
	if err := setScalar(n.Value, v); err != nil {
		return d.fail(n, key, "%v", err)
	}
	return nil
}

func (d *decoder) decodeTable(n *yaml.Node, v reflect.Value, prefix string) error {
	if n.Kind != yaml.MappingNode {
		return d.fail(n, cmp.Or(prefix, "the file"), "needs keys and values")
	}
	fields := make(map[string]int)
	var keys []string
	for i := range v.NumField() {
		key := v.Type().Field(i).Tag.Get("key")
		fields[key] = i
		keys = append(keys, join(prefix, key))
	}
	var seen []string
	for i := 0; i+1 < len(n.Content); i += 2 {
		name, val := n.Content[i], n.Content[i+1]
		field, ok := fields[name.Value]
		if !ok {
			return fmt.Errorf("%s:%d: %w", d.file, name.Line, unknownKey(join(prefix, name.Value), keys))
		}
		if slices.Contains(seen, name.Value) {
			return d.fail(name, join(prefix, name.Value), "is set twice")
		}
		seen = append(seen, name.Value)
		if err := d.decode(val, v.Field(field), join(prefix, name.Value)); err != nil {
			return err
		}
	}
	return nil
}

func (d *decoder) decodeList(n *yaml.Node, v reflect.Value, key string) error {
	if n.Kind != yaml.SequenceNode {
		return d.fail(n, key, "needs a list")
	}
	out := reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content))
	for i, elem := range n.Content {
		if isTable(v.Type().Elem()) {
			setDefaults(out.Index(i))
		}
		if err := d.decode(elem, out.Index(i), fmt.Sprintf("%s[%d]", key, i)); err != nil {
			return err
		}
	}
	v.Set(out)
	return nil
}

// decodeMap reads a map of strings. The user chooses its keys.
func (d *decoder) decodeMap(n *yaml.Node, v reflect.Value, key string) error {
	if n.Kind != yaml.MappingNode {
		return d.fail(n, key, "needs keys and values")
	}
	out := make(map[string]string, len(n.Content)/2)
	for i := 0; i+1 < len(n.Content); i += 2 {
		name, val := n.Content[i], n.Content[i+1]
		if _, ok := out[name.Value]; ok {
			return d.fail(name, join(key, name.Value), "is set twice")
		}
		if val.Kind != yaml.ScalarNode {
			return d.fail(val, join(key, name.Value), "needs a single value")
		}
		out[name.Value] = val.Value
	}
	v.Set(reflect.ValueOf(out))
	return nil
}

func setScalar(text string, v reflect.Value) error {
	if isText(v.Type()) {
		return v.Addr().Interface().(encoding.TextUnmarshaler).UnmarshalText([]byte(text))
	}
	if v.Type() == reflect.TypeFor[time.Duration]() {
		d, err := ParseDuration(text)
		v.SetInt(int64(d))
		return err
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(text)
	case reflect.Bool:
		b, err := strconv.ParseBool(text)
		if err != nil {
			return fmt.Errorf("%q is neither true nor false", text)
		}
		v.SetBool(b)
	case reflect.Int, reflect.Int64:
		n, err := strconv.ParseInt(text, 10, v.Type().Bits())
		if err != nil || n < 0 {
			return fmt.Errorf("%q is not a whole number from 0 up", text)
		}
		v.SetInt(n)
	default:
		panic("config: cannot read a " + v.Type().String())
	}
	return nil
}

// ParseDuration reads a duration in Go's notation or in whole days ("30d").
func ParseDuration(text string) (time.Duration, error) {
	if days, ok := strings.CutSuffix(text, "d"); ok {
		if n, err := strconv.Atoi(days); err == nil && 0 <= n && n <= 3650 {
			return time.Duration(n) * day, nil
		}
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		return 0, fmt.Errorf("%q is not a duration such as 90s, 15m, 24h or 30d", text)
	}
	return d, nil
}

func join(prefix, key string) string {
	if prefix == "" {
		return key
	}
	return prefix + "." + key
}

// unknownKey returns an error that names an unknown key and the key that the user probably meant.
func unknownKey(key string, known []string) error {
	best := wire.Near(key, known)
	if best == "" {
		return fmt.Errorf("unknown key %q", key)
	}
	return fmt.Errorf("unknown key %q, did you mean %q?", key, best)
}
