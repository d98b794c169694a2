package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"strings"
)

// dependency is a module, or the standard library, that is linked into a binary.
type dependency struct {
	path    string
	version string
	texts   []file // license and notice files
}

// dependencies returns the dependencies of a binary: the standard library, then the modules in the order of info.
func (b *build) dependencies(ctx context.Context, info *debug.BuildInfo) ([]dependency, error) {
	root, err := output(ctx, b.src, nil, "go", "env", "GOROOT")
	if err != nil {
		return nil, err
	}
	std, err := readDependency(dependency{path: "std", version: info.GoVersion}, root)
	if err != nil {
		return nil, err
	}
	list := []dependency{std}
	var paths []string
	for _, dep := range info.Deps {
		paths = append(paths, dep.Path)
	}
	dirs, err := moduleDirs(ctx, b.src, paths)
	if err != nil {
		return nil, err
	}
	for _, dep := range info.Deps {
		if dep.Replace != nil {
			return nil, fmt.Errorf("%s is replaced in go.mod: a release must be built from published modules", dep.Path)
		}
		d, err := readDependency(dependency{path: dep.Path, version: dep.Version}, dirs[dep.Path])
		if err != nil {
			return nil, err
		}
		list = append(list, d)
	}
	return list, nil
}

func moduleDirs(ctx context.Context, src string, paths []string) (map[string]string, error) {
	list, err := output(ctx, src, nil, "go", append([]string{"list", "-m", "-f", "{{.Path}}\t{{.Dir}}"}, paths...)...)
	if err != nil {
		return nil, err
	}
	dirs := map[string]string{}
	for line := range strings.Lines(list) {
		path, dir, _ := strings.Cut(strings.TrimSpace(line), "\t")
		dirs[path] = dir
	}
	return dirs, nil
}

var licenseName = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice)([.-].*)?$`)

// readDependency returns d with the license and notice files in dir. It is an error if there is none, because a release
// must not contain code whose license it does not pass on.
func readDependency(d dependency, dir string) (dependency, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return d, fmt.Errorf("license of %s: %w", d.path, err)
	}
	for _, e := range entries {
		if !e.Type().IsRegular() || !licenseName.MatchString(e.Name()) || strings.HasSuffix(e.Name(), ".go") {
			continue
		}
		data, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return d, fmt.Errorf("license of %s: %w", d.path, err)
		}
		d.texts = append(d.texts, file{e.Name(), 0o644, data})
	}
	if len(d.texts) == 0 {
		return d, fmt.Errorf("module %s has no license file", d.path)
	}
	return d, nil
}

func licenseTexts(dependencies []dependency) []byte {
	var b bytes.Buffer
	b.WriteString("agentmesh is licensed under Apache-2.0, see LICENSE. The binary also contains these:\n")
	for _, d := range dependencies {
		for _, t := range d.texts {
			fmt.Fprintf(&b, "\n%s\n%s %s, %s\n%[1]s\n\n", strings.Repeat("=", 100), d.path, d.version, t.name)
			b.Write(bytes.TrimRight(t.data, "\n"))
			b.WriteString("\n")
		}
	}
	return b.Bytes()
}
