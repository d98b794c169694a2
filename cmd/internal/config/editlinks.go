package config

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/agentmesh/agentmesh/node/bridge"
)

// errLinkForm is the error for a list of links that is not a plain list with one link below the other. The program does
// not change such a list.
var errLinkForm = errors.New("links is written in a form that agentmesh cannot change; edit the file by hand")

// AddLink appends a link to the configuration file, which it edits as [Source.Rewrite] does. It writes only the string
// fields and the options of l.
func (s Source) AddLink(l bridge.Link, kinds []bridge.Kind) error {
	return s.rewrite(kinds, func(data []byte) ([]byte, error) { return addLink(data, l) }, func(before *Config, _ Config) error {
		before.Links = append(before.Links, l)
		return nil
	})
}

// RemoveLink removes the link with this name from the configuration file, which it edits as [Source.Rewrite] does.
func (s Source) RemoveLink(name string, kinds []bridge.Kind) error {
	return s.rewrite(kinds, func(data []byte) ([]byte, error) { return removeLink(data, name) }, func(before *Config, _ Config) error {
		before.Links = slices.DeleteFunc(before.Links, func(listed bridge.Link) bool { return listed.Name == name })
		if len(before.Links) == 0 {
			before.Links = nil
		}
		return nil
	})
}

// readLinks returns the lines of a configuration file, and the nodes of its key "links" and of the list of links. Both
// nodes are nil if the file has no such key.
func readLinks(data []byte) (lines []string, key, list *yaml.Node, err error) {
	root, err := parseYAML("the configuration", data)
	if err != nil {
		return nil, nil, nil, err
	}
	key, list = findMember(root, "links")
	if list != nil && len(list.Content) > 0 && (list.Kind != yaml.SequenceNode || list.Style&yaml.FlowStyle != 0) {
		return nil, nil, nil, errLinkForm
	}
	return strings.SplitAfter(string(data), "\n"), key, list, nil
}

func addLink(data []byte, l bridge.Link) ([]byte, error) {
	lines, key, list, err := readLinks(data)
	if err != nil {
		return nil, err
	}
	scalar := func(text string) *yaml.Node { return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: text} }
	item := &yaml.Node{Kind: yaml.MappingNode}
	v := reflect.ValueOf(l)
	for field, value := range v.Fields() {
		if value.Kind() == reflect.String && value.String() != "" {
			item.Content = append(item.Content, scalar(field.Tag.Get("key")), scalar(value.String()))
		}
	}
	if len(l.Options) > 0 {
		options := &yaml.Node{Kind: yaml.MappingNode}
		for _, name := range slices.Sorted(maps.Keys(l.Options)) {
			options.Content = append(options.Content, scalar(name), scalar(l.Options[name]))
		}
		item.Content = append(item.Content, scalar("options"), options)
	}
	begin, end, indent := len(lines), len(lines), 0
	added := any([]any{item})
	switch {
	case key != nil && len(list.Content) > 0:
		begin = endOfBlock(lines, key.Line-1, key.Column-1)
		end, indent = begin, max(strings.Index(lines[list.Content[0].Line-1], "-"), 0)
	case key != nil: // links: [], or no value
		begin, end = key.Line-1, key.Line
		fallthrough
	default:
		added = map[string]any{"links": added}
	}
	text, err := encode(added, indent)
	return []byte(strings.Join(slices.Replace(lines, begin, end, text...), "")), err
}

// removeLink removes a link and the comment above it.
func removeLink(data []byte, name string) ([]byte, error) {
	lines, key, list, err := readLinks(data)
	if err != nil {
		return nil, err
	}
	if list == nil {
		return nil, errNoLink(name)
	}
	for i, item := range list.Content {
		if _, value := findMember(item, "name"); value == nil || value.Value != name {
			continue
		}
		begin, end := item.Line-1, endOfBlock(lines, key.Line-1, key.Column-1)
		if i+1 < len(list.Content) {
			end = skipComment(lines, list.Content[i+1].Line-1)
		}
		begin = max(skipComment(lines, begin), key.Line)
		if len(list.Content) == 1 {
			begin = key.Line - 1
		}
		return []byte(strings.Join(slices.Delete(lines, begin, end), "")), nil
	}
	return nil, errNoLink(name)
}

// skipComment returns the index of the first line of the comment above the line with the given index. Without a
// comment, it returns that index.
func skipComment(lines []string, line int) int {
	for line > 0 && strings.HasPrefix(strings.TrimSpace(lines[line-1]), "#") {
		line--
	}
	return line
}

// ErrNoLink is the error of removing a link that the configuration file does not have.
var ErrNoLink = errors.New("the configuration file has no link")

func errNoLink(name string) error { return fmt.Errorf("%w %s", ErrNoLink, name) }
