package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

type platform struct{ os, arch string }

func (p platform) String() string { return p.os + "/" + p.arch }

func (p platform) binary() string {
	if p.os == "windows" {
		return "agentmesh.exe"
	}
	return "agentmesh"
}

// release is one version of one commit.
type release struct {
	version string
	url     string // address of the published files, or ""
	signer  string // the public key of the checksums' signature, or ""
	repo    string // repository of the commit
	commit  string
	date    time.Time // time of the commit
	targets []platform
	log     io.Writer
}

func newRelease(ctx context.Context, version, commit string, targets []platform, log io.Writer) (*release, error) {
	r := &release{version: version, targets: targets, log: log}
	var err error
	if r.repo, err = output(ctx, "", nil, "git", "rev-parse", "--show-toplevel"); err != nil {
		return nil, err
	}
	if r.commit, err = output(ctx, "", nil, "git", "rev-parse", "--verify", commit+"^{commit}"); err != nil {
		return nil, err
	}
	seconds, err := output(ctx, "", nil, "git", "log", "-1", "--format=%ct", r.commit)
	if err != nil {
		return nil, err
	}
	n, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil {
		return nil, fmt.Errorf("time of the commit: %w", err)
	}
	r.date = time.Unix(n, 0).UTC()
	if dirty, err := output(ctx, "", nil, "git", "status", "--porcelain"); err == nil && dirty != "" {
		fmt.Fprintf(log, "the working tree has changes that are not in the release, which is built from commit %.12s\n", r.commit)
	}
	return r, nil
}

// make builds the release into out, which must be empty or missing. cache is Go's build cache, "" for the default.
func (r *release) make(ctx context.Context, out, cache string) (err error) {
	if entries, err := os.ReadDir(out); err == nil && len(entries) > 0 {
		return fmt.Errorf("%s is not empty", out)
	}
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return err
	}
	stage, err := os.MkdirTemp(filepath.Dir(out), ".release-*") // so that out is complete or missing
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(stage)) }()
	tmp, err := os.MkdirTemp("", "agentmesh-release-*")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(tmp)) }()
	b := build{release: r, src: filepath.Join(tmp, "src"), tmp: tmp}
	if cache != "" {
		b.env = append(b.env, "GOCACHE="+cache)
	}
	if err := b.clone(ctx); err != nil {
		return err
	}
	common, err := b.makeCommonFiles(ctx)
	if err != nil {
		return err
	}
	for _, p := range r.targets {
		start := time.Now()
		fmt.Fprintf(r.log, "building %s\n", p)
		if err := b.writeArchive(ctx, p, common, stage); err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
		fmt.Fprintf(r.log, "built %s in %ds\n", p, int(time.Since(start).Seconds()))
	}
	fmt.Fprintln(r.log, "making packages and the image")
	if err := b.writePackages(ctx, stage); err != nil {
		return err
	}
	if err := errors.Join(writeMCPServer(stage, r.version), writeFormula(stage, r.version, r.url), writeInstaller(stage, r.version, r.url, r.signer)); err != nil {
		return err
	}
	return publish(stage, out)
}

// publish writes the checksums and moves the finished release to its place.
func publish(stage, out string) error {
	if err := writeSums(stage); err != nil {
		return err
	}
	if err := os.Chmod(stage, 0o755); err != nil {
		return err
	}
	if err := os.Remove(out); err != nil && !errors.Is(err, fs.ErrNotExist) { // it may be an empty directory
		return err
	}
	return os.Rename(stage, out)
}

// build is one build of a release, in its own directories.
type build struct {
	*release
	src, tmp string   // the clone of the commit, and the folder for everything temporary
	env      []string // more environment variables for go build
}

// clone checks out the commit, without any other files of the working tree.
func (b *build) clone(ctx context.Context) error {
	if _, err := output(ctx, "", nil, "git", "-c", "core.autocrlf=false", "clone", "--quiet", "--shared", "--no-checkout", b.repo, b.src); err != nil {
		return err
	}
	_, err := output(ctx, b.src, nil, "git", "-c", "core.autocrlf=false", "-c", "advice.detachedHead=false", "checkout", "--quiet", "--detach", b.commit)
	return err
}

// compile builds the command for a platform, or for this machine if p is zero. The bytes of the binary depend only on
// the sources and the version of Go.
func (b *build) compile(ctx context.Context, p platform, file string) error {
	flags := fmt.Sprintf("-s -w -buildid= -X main.version=%s -X main.commit=%s -X main.date=%s", b.version, b.commit, b.date.Format(time.RFC3339))
	env := append(slices.Clone(b.env), "CGO_ENABLED=0", "GOFLAGS=", "GOEXPERIMENT=", "GOWORK=off", "GOAMD64=v1", "GOARM64=v8.0")
	if p.os != "" {
		env = append(env, "GOOS="+p.os, "GOARCH="+p.arch)
	}
	_, err := output(ctx, b.src, env, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", flags, "-o", file, "./cmd/agentmesh")
	return err
}

// makeCommonFiles returns the files that all archives contain: the completions, the license and the README.
func (b *build) makeCommonFiles(ctx context.Context) ([]file, error) {
	here := filepath.Join(b.tmp, "here") // a binary that runs on this machine
	if err := b.compile(ctx, platform{}, here); err != nil {
		return nil, err
	}
	var files []file
	for _, shell := range []string{"bash", "fish", "zsh"} {
		text, err := output(ctx, b.tmp, nil, here, "completion", shell)
		if err != nil {
			return nil, err
		}
		files = append(files, file{"completions/agentmesh." + shell, 0o644, []byte(text + "\n")})
	}
	for _, name := range []string{"LICENSE", "README.md"} {
		data, err := os.ReadFile(filepath.Join(b.src, name))
		if err != nil {
			return nil, err
		}
		files = append(files, file{name, 0o644, data})
	}
	return files, nil
}

// writeArchive writes the archive of one platform, and its files for [build.writePackages].
func (b *build) writeArchive(ctx context.Context, p platform, common []file, out string) error {
	built := filepath.Join(b.tmp, p.os+"-"+p.arch)
	if err := b.compile(ctx, p, built); err != nil {
		return err
	}
	binary, err := os.ReadFile(built)
	if err != nil {
		return err
	}
	info, err := buildinfo.Read(bytes.NewReader(binary))
	if err != nil {
		return fmt.Errorf("read the build information of the binary: %w", err)
	}
	dependencies, err := b.dependencies(ctx, info)
	if err != nil {
		return err
	}
	name := archiveName(b.version, p)
	files := append(slices.Clone(common), file{p.binary(), 0o755, binary}, file{"THIRD_PARTY_LICENSES", 0o644, licenseTexts(dependencies)})
	write, ending := writeTarGz, ".tar.gz"
	if p.os == "windows" {
		write, ending = writeZip, ".zip"
	}
	archive, err := write(name, files, b.date)
	if err != nil {
		return err
	}
	dir := filepath.Join(b.tmp, "packages", p.os+"_"+p.arch)
	for _, f := range files {
		path := filepath.Join(dir, filepath.FromSlash(f.name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, f.data, f.mode); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(out, name+ending), archive, 0o644)
}

func archiveName(version string, p platform) string {
	return fmt.Sprintf("agentmesh_%s_%s_%s", version, p.os, p.arch)
}

// writePackages writes the SBOMs, deb, rpm and container image. The module .ci/packages makes them, with its own
// libraries.
func (b *build) writePackages(ctx context.Context, out string) error {
	_, err := output(ctx, filepath.Join(b.src, ".ci", "packages"), nil, "go", "run", ".",
		"-version", b.version, "-date", b.date.Format(time.RFC3339), "-in", filepath.Join(b.tmp, "packages"), "-out", out)
	return err
}

// writeSums writes SHA256SUMS in the format of sha256sum -c.
func writeSums(dir string) error {
	entries, err := os.ReadDir(dir) // sorted by name
	if err != nil {
		return err
	}
	var list strings.Builder
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return err
		}
		sum := sha256.Sum256(data)
		fmt.Fprintf(&list, "%s  %s\n", hex.EncodeToString(sum[:]), e.Name())
	}
	return os.WriteFile(filepath.Join(dir, "SHA256SUMS"), []byte(list.String()), 0o644)
}

// output runs a program and returns its standard output, without the line breaks at the end.
func output(ctx context.Context, dir string, env []string, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	var errOut bytes.Buffer
	cmd.Stderr = &errOut
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s", filepath.Base(program), strings.Join(args, " "), err, errOut.Bytes())
	}
	return strings.TrimRight(string(out), "\r\n"), nil
}
