package config

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"
)

// problem is a value that the program cannot work with.
type problem struct{ key, reason string }

func (p problem) Error() string { return p.key + ": " + p.reason }

// addLines adds file and line to the problems whose key is in the configuration file. A problem with a value from
// the environment or a flag stays as it is.
func (s Source) addLines(err error) error {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return err
	}
	data, readErr := os.ReadFile(s.File)
	if readErr != nil {
		return err // without a file, no problem has a line
	}
	root, parseErr := parseYAML(s.File, data)
	if parseErr != nil {
		return err
	}
	var out []error
	for _, e := range joined.Unwrap() {
		if p, ok := errors.AsType[problem](e); ok && !s.Overrides(p.key) {
			if line := lineOf(root, p.key); line > 0 {
				e = fmt.Errorf("%s:%d: %w", s.File, line, e)
			}
		}
		out = append(out, e)
	}
	return errors.Join(out...)
}

// Overrides reports whether the environment or a flag sets the key or the list that contains it.
func (s Source) Overrides(key string) bool {
	for _, l := range leaves(reflect.TypeFor[Config]()) {
		if rest, ok := strings.CutPrefix(key, l.key); !ok || rest != "" && !strings.ContainsAny(rest[:1], ".[") {
			continue
		}
		if _, ok := Lookup(s.Environ, l.env()); ok {
			return true
		}
		for _, set := range s.Settings {
			if set.Key == l.key {
				return true
			}
		}
	}
	return false
}

// keyStep matches one step of a key: hooks, 0 or intent in "hooks[0].intent".
var keyStep = regexp.MustCompile(`[^.\[\]]+`)

// lineOf returns the line of a key such as "hooks[0].intent", or of the longest part of it that the file has. It
// returns 0 if the file has no part of the key.
func lineOf(n *yaml.Node, key string) (line int) {
	for _, step := range keyStep.FindAllString(key, -1) {
		name, value := findMember(n, step)
		if i, err := strconv.Atoi(step); err == nil && n != nil && n.Kind == yaml.SequenceNode && i < len(n.Content) {
			name, value = n.Content[i], n.Content[i]
		}
		if name == nil {
			return line
		}
		line, n = name.Line, value
	}
	return line
}
