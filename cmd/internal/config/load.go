package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"reflect"
	"slices"
	"strings"
	"syscall"
)

// Setting is one value from the command line.
type Setting struct {
	Key, Value string
	From       string // how the user wrote it: "--listen"
}

// Source names the places from which a configuration is read.
type Source struct {
	File     string // YAML
	Required bool   // the user named the file, so it must exist
	Environ  []string
	Settings []Setting
}

// Load reads a configuration: defaults, file, environment, flags. Each source overrides the ones before it. Load
// reports values that it cannot parse; [Config.Check] reports values that do not fit together.
func Load(src Source) (Config, error) {
	c := Default()
	root := reflect.ValueOf(&c).Elem()
	data, err := os.ReadFile(src.File)
	switch {
	case !src.Required && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)):
	case errors.Is(err, fs.ErrNotExist):
		return c, fmt.Errorf("there is no configuration file %s; name another one with --config or AGENTMESH_CONFIG", src.File)
	case errors.Is(err, fs.ErrPermission):
		return c, fmt.Errorf("read configuration: %w; run the command as the user who owns the file", err)
	case err != nil:
		return c, fmt.Errorf("read configuration: %w", err)
	default:
		if err := loadFile(root, src.File, data); err != nil {
			return c, err
		}
	}
	for _, l := range leaves(root.Type()) {
		name := l.env()
		if text, ok := Lookup(src.Environ, name); ok {
			if err := setText(root, l, text, name); err != nil {
				return c, err
			}
		}
	}
	for _, s := range src.Settings {
		l, err := findLeaf(root.Type(), s.Key)
		if err != nil {
			return c, fmt.Errorf("%s: %w", s.From, err)
		}
		if err := setText(root, l, s.Value, s.From); err != nil {
			return c, err
		}
	}
	return c, nil
}

// Lookup returns the value of a variable in environ. If a variable is set twice, the last value counts.
func Lookup(environ []string, name string) (string, bool) {
	for _, e := range slices.Backward(environ) {
		if value, ok := strings.CutPrefix(e, name+"="); ok {
			return value, true
		}
	}
	return "", false
}

// leaf is one key that a single text can set.
type leaf struct {
	key   string // "access.mode"
	index []int  // for reflect.Value.FieldByIndex
	field reflect.StructField
}

// env returns the name of the environment variable that sets the leaf.
func (l leaf) env() string {
	return "AGENTMESH_" + strings.ToUpper(strings.ReplaceAll(l.key, ".", "_"))
}

// leaves returns the keys of a configuration in the order of the struct. A list of structs is one leaf.
func leaves(t reflect.Type) []leaf {
	var out []leaf
	for i := range t.NumField() {
		f := t.Field(i)
		key := f.Tag.Get("key")
		if !isTable(f.Type) {
			out = append(out, leaf{key, []int{i}, f})
			continue
		}
		for _, l := range leaves(f.Type) {
			out = append(out, leaf{key + "." + l.key, append([]int{i}, l.index...), l.field})
		}
	}
	return out
}

// setDefaults gives each key of a table the default in its tag.
func setDefaults(table reflect.Value) {
	for _, l := range leaves(table.Type()) {
		if text, ok := l.field.Tag.Lookup("default"); ok {
			if err := setText(table, l, text, "default"); err != nil {
				panic(err)
			}
		}
	}
}

func findLeaf(t reflect.Type, key string) (leaf, error) {
	all := leaves(t)
	keys := make([]string, len(all))
	for i, l := range all {
		if l.key == key {
			return l, nil
		}
		keys[i] = l.key
	}
	return leaf{}, unknownKey(key, keys)
}

// setText sets a leaf from the environment or a flag. A leaf of type string gets the text unchanged. For other types,
// the text is YAML, in which a list needs no brackets unless it is a list of tables.
func setText(root reflect.Value, l leaf, text, from string) error {
	v := root.FieldByIndex(l.index)
	if v.Kind() == reflect.String {
		if err := setScalar(text, v); err != nil {
			return fmt.Errorf("%s: %s: %w", from, l.key, err)
		}
		return nil
	}
	if v.Kind() == reflect.Slice && !isTable(v.Type().Elem()) && !isText(v.Type()) && !strings.HasPrefix(strings.TrimSpace(text), "[") {
		text = "[" + text + "]"
	}
	n, err := parseYAML(from, []byte(text))
	if err != nil {
		return err
	}
	d := decoder{file: from}
	return d.decode(n, v, l.key)
}

// EnvPassphraseFile and EnvPassphrase supply the passphrase of an encrypted key file or backup, in this order. A flag
// would show the passphrase to other users of the machine.
const (
	EnvPassphraseFile = "AGENTMESH_PASSPHRASE_FILE"
	EnvPassphrase     = "AGENTMESH_PASSPHRASE"
)

// EnvAgentSocket names the socket of the agent's door: the owner API without decisions, for the owner's agent. serve
// sets the variable for hooks.
const EnvAgentSocket = "AGENTMESH_AGENT_SOCKET"

// otherEnv are the variables of this project that the program reads and that are not configuration keys.
var otherEnv = []string{"AGENTMESH_DATA", "AGENTMESH_CONFIG", EnvAgentSocket, EnvPassphrase, EnvPassphraseFile}

// UnknownEnv returns the variables that begin with AGENTMESH_ and set nothing.
func UnknownEnv(environ []string) []string {
	known := slices.Clone(otherEnv)
	for _, l := range leaves(reflect.TypeFor[Config]()) {
		known = append(known, l.env())
	}
	var out []string
	for _, e := range environ {
		name, _, _ := strings.Cut(e, "=")
		if strings.HasPrefix(name, "AGENTMESH_") && !slices.Contains(known, name) {
			out = append(out, name)
		}
	}
	return out
}
