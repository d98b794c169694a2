package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/agentmesh/agentmesh/node/atomicfile"
	"github.com/agentmesh/agentmesh/node/bridge"
)

// Edit is a new value for one key of the configuration file.
type Edit struct {
	Key   string // "name", "owner.name"
	Value any    // string or []string
}

// Switch is the setting for a protocol that the process can serve to other networks.
type Switch struct {
	Kind  string
	Serve *string // on, off or auto
}

// Switches returns the settings that agentmesh bridge enable and disable change. MEW is not one of them, because a space
// needs configured participants.
func (c *Config) Switches() []Switch {
	return []Switch{{"mess", &c.MESS.Serve}, {"agentrelay", &c.AgentRelay.Serve}, {"moltspeak", &c.MoltSpeak.Serve}, {"a2a", &c.A2A.Serve}}
}

// fileHead is the first line of a configuration file that [Source.Rewrite] makes.
const fileHead = "# The configuration of this agent. docs/config.md describes every key; agentmesh config check reads this file.\n"

// Rewrite changes keys of the configuration file, or makes the file. Every line that needs no change stays as it is,
// with its comments. Rewrite writes nothing if the result would not load with exactly these values.
func (s Source) Rewrite(edits []Edit, kinds []bridge.Kind) error {
	for _, e := range edits {
		if s.Overrides(e.Key) {
			return fmt.Errorf("%s is set by a flag or an environment variable", e.Key)
		}
	}
	current, err := Load(s)
	if err != nil {
		return err
	}
	edits = slices.DeleteFunc(slices.Clone(edits), func(e Edit) bool { // an empty value that already applies needs no line
		return reflect.ValueOf(e.Value).Len() == 0 && current.hasEdit(e)
	})
	return s.rewrite(kinds, func(data []byte) ([]byte, error) { return editFile(data, edits) }, func(before *Config, after Config) error {
		for _, e := range edits {
			if !after.hasEdit(e) {
				return fmt.Errorf("%s is written in a form that agentmesh cannot change; edit the file by hand", e.Key)
			}
			l, err := findLeaf(reflect.TypeFor[Config](), e.Key)
			if err != nil {
				return err
			}
			reflect.ValueOf(before).Elem().FieldByIndex(l.index).Set(reflect.ValueOf(after).FieldByIndex(l.index))
		}
		return nil
	})
}

// rewrite replaces the text of the configuration file with the result of change. apply gets the old and the new
// configuration. It makes the same change in the old one, or returns an error to refuse it. rewrite writes nothing if
// the new file is not valid, if apply refuses, or if the two configurations then still differ.
func (s Source) rewrite(kinds []bridge.Kind, change func([]byte) ([]byte, error), apply func(before *Config, after Config) error) error {
	before, err := Load(s)
	if err != nil {
		return err
	}
	path, mode := s.File, fs.FileMode(0o600)
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target
	}
	data, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read configuration: %w", err)
	}
	if info, err := os.Stat(path); err == nil {
		mode = info.Mode().Perm()
	}
	if len(data) == 0 {
		data = []byte(fileHead)
	}
	if data[len(data)-1] != '\n' {
		data = append(data, '\n')
	}
	if data, err = change(data); err != nil {
		return err
	}
	return atomicfile.WriteFunc(path, func(f *os.File) error {
		if _, err := f.Write(data); err != nil {
			return err
		}
		rewritten := s
		rewritten.File, rewritten.Required = f.Name(), true
		c, err := rewritten.LoadAndCheck(kinds)
		if err != nil {
			return errors.New(regexp.MustCompile(regexp.QuoteMeta(f.Name())+`(:\d+)?: `).ReplaceAllString(err.Error(), "")) // the user does not see the temporary file
		}
		if err := apply(&before, c); err != nil {
			return err
		}
		if !reflect.DeepEqual(before, c) { // for example, if another key is on the same line
			return errors.New("the file is written in a form that agentmesh cannot change; edit it by hand")
		}
		return f.Chmod(mode)
	})
}

// hasEdit reports whether the configuration already has the value of an edit. A nil list equals an empty one.
func (c Config) hasEdit(e Edit) bool {
	l, err := findLeaf(reflect.TypeFor[Config](), e.Key)
	if err != nil {
		return false
	}
	switch got := reflect.ValueOf(c).FieldByIndex(l.index).Interface().(type) {
	case string:
		return got == e.Value
	case []string:
		want, ok := e.Value.([]string)
		return ok && slices.Equal(got, want)
	}
	return false
}

// editFile applies the edits one after another. It parses the file again for each edit, because an edit may move lines.
func editFile(data []byte, edits []Edit) ([]byte, error) {
	for _, e := range edits {
		root, err := parseYAML("the configuration", data)
		if err != nil {
			return nil, err
		}
		lines := strings.SplitAfter(string(data), "\n")
		if lines, err = editLines(lines, root, e); err != nil {
			return nil, err
		}
		data = []byte(strings.Join(lines, ""))
	}
	return data, nil
}

// editLines sets one key in the lines of a file, whose tree is root. A key that already has the value stays as it is.
func editLines(lines []string, root *yaml.Node, e Edit) ([]string, error) {
	table, name, isNested := strings.Cut(e.Key, ".")
	parent := root
	if isNested {
		_, parent = findMember(root, table)
	} else {
		name = e.Key
	}
	member := map[string]any{name: e.Value}
	begin, end, indent := len(lines), len(lines), 0 // a new line at the end
	key, value := findMember(parent, name)
	switch {
	case key != nil && hasValue(value, e.Value):
		return lines, nil
	case key != nil:
		begin, indent = key.Line-1, key.Column-1
		end = endOfBlock(lines, begin, indent)
	case isNested && parent == nil:
		member = map[string]any{table: member}
	case isNested && len(parent.Content) == 0:
		return nil, fmt.Errorf("%s: the file has an empty table %s; remove that line", e.Key, table)
	case isNested: // a new line before the first of the table
		begin, indent = parent.Content[0].Line-1, parent.Content[0].Column-1
		end = begin
	}
	text, err := encode(member, indent)
	if err != nil {
		return nil, err
	}
	if value != nil && value.LineComment != "" && value.Kind == yaml.ScalarNode && len(text) == 1 { // keep the comment on the line
		text[0] = strings.TrimSuffix(text[0], "\n") + " " + value.LineComment + "\n"
	}
	return slices.Replace(lines, begin, end, text...), nil
}

// findMember returns the key and the value of a member of a mapping, or nil.
func findMember(table *yaml.Node, name string) (key, value *yaml.Node) {
	if table == nil || table.Kind != yaml.MappingNode {
		return nil, nil
	}
	for i := 0; i+1 < len(table.Content); i += 2 {
		if table.Content[i].Value == name {
			return table.Content[i], table.Content[i+1]
		}
	}
	return nil, nil
}

func hasValue(n *yaml.Node, value any) bool {
	list, ok := value.([]string)
	if !ok {
		return n.Kind == yaml.ScalarNode && n.Value == value
	}
	var items []string
	for _, item := range n.Content {
		items = append(items, item.Value)
	}
	return n.Kind == yaml.SequenceNode && slices.Equal(items, list)
}

// endOfBlock returns the index of the line after the value of a key. begin is the index of the key's line, and indent
// is the key's indentation. Comments and empty lines after the value belong to the next key.
func endOfBlock(lines []string, begin, indent int) int {
	end := begin + 1
	for i := end; i < len(lines); i++ {
		text := strings.TrimLeft(lines[i], " ")
		depth := len(lines[i]) - len(text)
		text = strings.TrimSpace(text)
		if text == "" || strings.HasPrefix(text, "#") {
			continue
		}
		// The items of a list may have the same indentation as the key.
		if depth < indent || depth == indent && !strings.HasPrefix(text, "- ") {
			break
		}
		end = i + 1
	}
	return end
}

// encode returns a value as lines of YAML, each with its line break. It indents them by the given number of spaces.
func encode(v any, indent int) ([]string, error) {
	var text strings.Builder
	enc := yaml.NewEncoder(&text)
	enc.SetIndent(2)
	if err := errors.Join(enc.Encode(v), enc.Close()); err != nil {
		return nil, err
	}
	lines := strings.SplitAfter(text.String(), "\n")
	lines = lines[:len(lines)-1]
	for i := range lines {
		lines[i] = strings.Repeat(" ", indent) + lines[i]
	}
	return lines, nil
}

// Sets reports whether the file, the environment or a flag sets the key.
func (s Source) Sets(key string) bool {
	if s.Overrides(key) {
		return true
	}
	data, err := os.ReadFile(s.File)
	if err != nil {
		return false
	}
	root, err := parseYAML(s.File, data)
	return err == nil && root != nil && lineOf(root, key) > 0
}
