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

// part is a module, or the standard library, that is linked into a binary.
type part struct {
	path    string
	version string
	texts   []file // license and notice files
}

// parts returns the parts of a binary: the standard library, then the modules in the order of info.
func (b *build) parts(ctx context.Context, info *debug.BuildInfo) ([]part, error) {
	root, err := output(ctx, b.src, nil, "go", "env", "GOROOT")
	if err != nil {
		return nil, err
	}
	std, err := readPart(part{path: "std", version: info.GoVersion}, root)
	if err != nil {
		return nil, err
	}
	parts := []part{std}
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
		p, err := readPart(part{path: dep.Path, version: dep.Version}, dirs[dep.Path])
		if err != nil {
			return nil, err
		}
		parts = append(parts, p)
	}
	return parts, nil
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

func readPart(p part, dir string) (part, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return p, fmt.Errorf("license of %s: %w", p.path, err)
	}
	for _, e := range entries {
		if !e.Type().IsRegular() || !licenseName.MatchString(e.Name()) || strings.HasSuffix(e.Name(), ".go") {
			continue
		}
		data, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return p, fmt.Errorf("license of %s: %w", p.path, err)
		}
		p.texts = append(p.texts, file{e.Name(), 0o644, data})
	}
	return p, nil
}

func licenseTexts(parts []part) []byte {
	var b bytes.Buffer
	b.WriteString("agentmesh is licensed under Apache-2.0, see LICENSE. The binary also contains these:\n")
	for _, p := range parts {
		for _, t := range p.texts {
			fmt.Fprintf(&b, "\n%s\n%s %s, %s\n%[1]s\n\n", strings.Repeat("=", 100), p.path, p.version, t.name)
			b.Write(bytes.TrimRight(t.data, "\n"))
			b.WriteString("\n")
		}
	}
	return b.Bytes()
}
