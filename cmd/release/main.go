// Command release builds what is published of a version: for each platform an archive with the static binary, its
// manual, completions and licences, an SBOM, and one list of checksums.
//
// A release is reproducible: the same commit and the same Go make the same bytes, wherever and whenever. So it is
// built from a clean clone of a commit, never from the working tree; paths, times, users and version control do not
// reach the output, and all times are that of the commit. -verify builds everything a second time, in another
// directory and with an empty build cache, and compares. It needs Go and git, and ssh-keygen for -sign. .ci/release runs it.
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
	"strings"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:], os.Stderr)
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
		os.Exit(64)
	case err != nil:
		fmt.Fprintf(os.Stderr, "release: %v\n", err)
		os.Exit(1)
	}
}

// platforms are those that a release is made for.
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
	verify := flags.Bool("verify", false, "build a second time, in another directory with an empty cache, and compare byte for byte")
	only := flags.String("platforms", "", "only these, as os/arch with commas")
	key := flags.String("sign", "", "file with an SSH key that signs SHA256SUMS, by ssh-keygen")
	commit := flags.String("commit", "HEAD", "commit to build")
	if err := flags.Parse(args); err != nil {
		return flag.ErrHelp
	}
	form := versionForm.FindStringSubmatch(flags.Arg(0))
	if form == nil || flags.NArg() > 2 {
		flags.Usage()
		return flag.ErrHelp
	}
	targets, err := choose(*only)
	if err != nil {
		return err
	}
	out := flags.Arg(1)
	if out == "" {
		out = filepath.Join(".ci", "out", "release-"+form[1])
	}
	if out, err = filepath.Abs(out); err != nil {
		return err
	}
	r, err := newRelease(ctx, form[1], *commit, targets, log)
	if err != nil {
		return err
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

// signedAs is the namespace of signatures: one for a release is good for nothing else.
const signedAs = "agentmesh-release"

// sign writes SHA256SUMS.sig, which ssh-keygen -Y verify reads.
func sign(ctx context.Context, dir, key string) error {
	key, err := filepath.Abs(key)
	if err != nil {
		return err
	}
	_, err = output(ctx, dir, os.Environ(), "ssh-keygen", "-q", "-Y", "sign", "-f", key, "-n", signedAs, "SHA256SUMS")
	return err
}

// choose picks platforms by name.
func choose(names string) ([]platform, error) {
	if names == "" {
		return platforms, nil
	}
	var out []platform
	for name := range strings.SplitSeq(names, ",") {
		os, arch, _ := strings.Cut(name, "/")
		p := platform{os, arch}
		known := false
		for _, k := range platforms {
			known = known || k == p
		}
		if !known {
			return nil, fmt.Errorf("there is no release for %q", name)
		}
		out = append(out, p)
	}
	return out, nil
}

// verify makes the release again, elsewhere and from nothing, and compares.
func (r *release) verify(ctx context.Context, out string) (err error) {
	tmp, err := os.MkdirTemp("", "agentmesh-second-build-*")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(tmp)) }()
	second := filepath.Join(tmp, "out")
	if err := r.make(ctx, second, filepath.Join(tmp, "cache")); err != nil {
		return err
	}
	n, err := compare(out, second)
	if err != nil {
		return err
	}
	fmt.Fprintf(r.log, "verified: %d files are the same byte for byte\n", n)
	return nil
}

// compare says which files of two directories differ.
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
			faults = append(faults, fmt.Errorf("%s is not the same in both builds", name))
		}
	}
	return len(names), errors.Join(faults...)
}
