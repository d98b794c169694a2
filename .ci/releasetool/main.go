// Command release builds the published files of a version: for each platform an SBOM, and an archive with the static
// binary, its completions and licenses; deb, rpm and container image for Linux; with -url, a formula for
// Homebrew and, with -sign, an install script; server.json for the registry of MCP servers; and one list of checksums.
//
// A release is reproducible: the same commit and the same version of Go give the same bytes on every machine and at any
// time. It is therefore built from a clean clone of a commit, never from the working tree. Paths, build times, users
// and Go's stamp of the repository's state do not reach the output, and all times are the time of the commit.
//
// -verify builds everything a second time, in another directory and with an empty build cache, and compares. The
// command needs Go and git, and ssh-keygen for -sign. .ci/release runs it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:], os.Stderr)
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
		os.Exit(64) // the usual exit code for a wrong command line
	case err != nil:
		fmt.Fprintf(os.Stderr, "release: %v\n", err)
		os.Exit(1)
	}
}

var platforms = []platform{
	{"darwin", "amd64"}, {"darwin", "arm64"}, {"linux", "amd64"}, {"linux", "arm64"}, {"windows", "amd64"}, {"windows", "arm64"},
}

// versionForm is a semantic version, with or without the v of its tag.
var versionForm = regexp.MustCompile(`^v?(\d+\.\d+\.\d+(?:-[0-9A-Za-z.-]+)?)$`)

func run(ctx context.Context, args []string, log io.Writer) error {
	flags := flag.NewFlagSet("release", flag.ContinueOnError)
	flags.SetOutput(log)
	flags.Usage = func() {
		fmt.Fprintf(log, "usage: release [flags] VERSION [OUTDIR]\n")
		flags.PrintDefaults()
	}
	verify := flags.Bool("verify", false, "build a second time, in another directory with an empty cache, and compare the bytes")
	only := flags.String("platforms", "", "build only these platforms, such as linux/amd64,windows/arm64")
	key := flags.String("sign", "", "sign SHA256SUMS with the SSH key in this file, using ssh-keygen")
	address := flags.String("url", "", "write a formula for Homebrew and, with -sign, install.sh: both download from the folder at this `address`")
	commit := flags.String("commit", "HEAD", "build this commit")
	if err := flags.Parse(args); err != nil {
		return flag.ErrHelp
	}
	match := versionForm.FindStringSubmatch(flags.Arg(0))
	if match == nil || flags.NArg() > 2 {
		flags.Usage()
		return flag.ErrHelp
	}
	version := match[1]
	targets, err := parsePlatforms(*only)
	if err != nil {
		return err
	}
	out := flags.Arg(1)
	if out == "" {
		out = filepath.Join(".ci", "out", "release-"+version)
	}
	if out, err = filepath.Abs(out); err != nil {
		return err
	}
	r, err := newRelease(ctx, version, *commit, targets, log)
	if err != nil {
		return err
	}
	r.url = *address
	if *key != "" {
		if r.signer, err = readSigner(*key); err != nil {
			return err
		}
	}
	if err := r.make(ctx, out, ""); err != nil {
		return err
	}
	if *verify {
		if err := r.verify(ctx, out); err != nil {
			return err
		}
	}
	if *key == "" {
		return nil
	}
	return sign(ctx, out, *key)
}

// signatureNamespace is the purpose for which ssh-keygen signs. It refuses a signature that was made for another
// purpose.
const signatureNamespace = "agentmesh-release"

// sign writes SHA256SUMS.sig, which ssh-keygen -Y verify accepts.
func sign(ctx context.Context, dir, key string) error {
	key, err := filepath.Abs(key)
	if err != nil {
		return err
	}
	_, err = output(ctx, dir, nil, "ssh-keygen", "-q", "-Y", "sign", "-f", key, "-n", signatureNamespace, "SHA256SUMS")
	return err
}

// parsePlatforms returns the platforms in names, a comma-separated list. If names is empty, it returns all platforms.
func parsePlatforms(names string) ([]platform, error) {
	if names == "" {
		return platforms, nil
	}
	var out []platform
	for name := range strings.SplitSeq(names, ",") {
		os, arch, _ := strings.Cut(name, "/")
		p := platform{os, arch}
		if !slices.Contains(platforms, p) {
			return nil, fmt.Errorf("there is no release for platform %q", name)
		}
		out = append(out, p)
	}
	return out, nil
}

// verify builds the release again, in another place and without a cache, and compares.
func (r *release) verify(ctx context.Context, out string) (err error) {
	tmp, err := os.MkdirTemp("", "agentmesh-second-build-*")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(tmp)) }()
	second := filepath.Join(tmp, "out")
	fmt.Fprintln(r.log, "building everything again, to compare")
	if err := r.make(ctx, second, filepath.Join(tmp, "cache")); err != nil {
		return err
	}
	n, err := compare(out, second)
	if err != nil {
		return err
	}
	fmt.Fprintf(r.log, "verified: %d files are identical in both builds\n", n)
	return nil
}

// compare returns the number of files in two directories, and an error that names every file that differs.
func compare(a, b string) (int, error) {
	names := map[string]bool{}
	for _, dir := range []string{a, b} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return 0, err
		}
		for _, e := range entries {
			names[e.Name()] = true
		}
	}
	var faults []error
	for name := range names {
		one, err := os.ReadFile(filepath.Join(a, name))
		other, err2 := os.ReadFile(filepath.Join(b, name))
		if err := errors.Join(err, err2); err != nil {
			faults = append(faults, err)
		} else if string(one) != string(other) {
			faults = append(faults, fmt.Errorf("%s differs between the two builds", name))
		}
	}
	return len(names), errors.Join(faults...)
}
