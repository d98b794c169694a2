// Command packages makes what a release has besides its archives: for each platform an SBOM, for each
// architecture of Linux a deb and an rpm, and for these architectures together one container image, as an OCI layout in
// a tar file. It needs no container engine. The same input gives the same bytes.
//
// The input is a folder with a folder for each platform (linux_amd64), which has the files of the archive. The other
// files of a package are beside this one, or in docs/operations. This is a module of its own, so that
// agentmesh does not depend on the libraries for packages. .ci/releasetool runs it.
package main

import (
	"archive/tar"
	"bytes"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"log"
	"os"
	"path/filepath"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb" // registers the packager
	"github.com/goreleaser/nfpm/v2/files"
	_ "github.com/goreleaser/nfpm/v2/rpm" // registers the packager
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

const (
	summary  = "Directory and node for AgentMesh: agents of different people find each other and exchange signed messages"
	homepage = "https://github.com/agentmesh/agentmesh"
	user     = "65532:65532" // of the process in the image; it has no name
)

// release is what all packages have in common.
type release struct {
	version string
	date    time.Time // of all files
	in, out string
}

func main() {
	log.SetFlags(0)
	log.SetPrefix("packages: ")
	var r release
	flag.StringVar(&r.version, "version", "", "version, such as 0.1.0")
	flag.StringVar(&r.in, "in", "", "folder with a folder for each platform")
	flag.StringVar(&r.out, "out", "", "existing folder for the packages")
	date := flag.String("date", "", "time of all files, as in RFC 3339")
	flag.Parse()
	var err error
	if r.date, err = time.Parse(time.RFC3339, *date); err != nil {
		log.Fatal(err)
	}
	if err := r.make(); err != nil {
		log.Fatal(err)
	}
}

func (r release) make() error {
	platforms, err := os.ReadDir(r.in)
	if err != nil {
		return err
	}
	var images []mutate.IndexAddendum
	for _, p := range platforms {
		if err := r.writeSBOM(p.Name()); err != nil {
			return fmt.Errorf("SBOM for %s: %w", p.Name(), err)
		}
		arch, isLinux := strings.CutPrefix(p.Name(), "linux_")
		if !isLinux {
			continue
		}
		for _, format := range []string{"deb", "rpm"} {
			if err := r.writePackage(format, arch); err != nil {
				return fmt.Errorf("%s for %s: %w", format, arch, err)
			}
		}
		image, err := r.image(arch)
		if err != nil {
			return fmt.Errorf("image for %s: %w", arch, err)
		}
		platform := v1.Platform{OS: "linux", Architecture: arch}
		images = append(images, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: &platform}})
	}
	if len(images) == 0 {
		return nil
	}
	return r.writeImage(images)
}

// writePackage writes a deb or an rpm. The package makes the user agentmesh, and starts no service.
func (r release) writePackage(format, arch string) error {
	from := filepath.Join(r.in, "linux_"+arch)
	contents := files.Contents{
		{Source: "agentmesh", Destination: "/usr/bin/agentmesh", FileInfo: &files.ContentFileInfo{Mode: 0o755}},
		{Source: "agentmesh.yaml", Destination: "/etc/agentmesh/agentmesh.yaml", Type: files.TypeConfigNoReplace},
		{Source: "../../docs/operations/agentmesh.service", Destination: "/usr/lib/systemd/system/agentmesh.service"},
		{Source: "agentmesh.sysusers", Destination: "/usr/lib/sysusers.d/agentmesh.conf"},
		{Source: "LICENSE", Destination: "/usr/share/doc/agentmesh/copyright"},
		{Source: "THIRD_PARTY_LICENSES", Destination: "/usr/share/doc/agentmesh/THIRD_PARTY_LICENSES"},
		{Source: "completions/agentmesh.bash", Destination: "/usr/share/bash-completion/completions/agentmesh"},
		{Source: "completions/agentmesh.zsh", Destination: "/usr/share/zsh/vendor-completions/_agentmesh"},
		{Source: "completions/agentmesh.fish", Destination: "/usr/share/fish/vendor_completions.d/agentmesh.fish"},
	}
	for _, c := range contents {
		if _, err := os.Stat(c.Source); err != nil {
			c.Source = filepath.Join(from, filepath.FromSlash(c.Source))
		}
		if c.FileInfo == nil {
			c.FileInfo = &files.ContentFileInfo{Mode: 0o644}
		}
		c.FileInfo.MTime = r.date
	}
	info := nfpm.WithDefaults(&nfpm.Info{
		Name: "agentmesh", Arch: arch, Platform: "linux", Version: r.version, Section: "net", Maintainer: "AgentMesh <" + homepage + ">",
		Description: summary, Homepage: homepage, License: "Apache-2.0", MTime: r.date,
		Overridables: nfpm.Overridables{
			Contents: contents, Umask: 0o022, Recommends: []string{"ca-certificates"},
			Scripts: nfpm.Scripts{PostInstall: "postinstall.sh"},
			RPM:     nfpm.RPM{BuildHost: "localhost"},
		},
	})
	packager, err := nfpm.Get(format)
	if err != nil {
		return err
	}
	if err := nfpm.PrepareForPackager(info, format); err != nil {
		return err
	}
	var data bytes.Buffer
	if err := packager.Package(info, &data); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(r.out, packager.ConventionalFileName(info)), data.Bytes(), 0o644)
}

// image returns the container image of an architecture: the binary, the certificates of the public authorities, and an
// empty data folder.
func (r release) image(arch string) (v1.Image, error) {
	binary, err := os.ReadFile(filepath.Join(r.in, "linux_"+arch, "agentmesh"))
	if err != nil {
		return nil, err
	}
	var roots bytes.Buffer
	for root := range bundle.Roots() {
		if err := pem.Encode(&roots, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}); err != nil {
			return nil, err
		}
	}
	var data bytes.Buffer
	w := tar.NewWriter(&data)
	for _, f := range []struct {
		tar.Header
		data []byte
	}{
		{tar.Header{Name: "data/", Typeflag: tar.TypeDir, Mode: 0o700, Uid: 65532, Gid: 65532}, nil},
		{tar.Header{Name: "etc/ssl/certs/ca-certificates.crt", Typeflag: tar.TypeReg, Mode: 0o644}, roots.Bytes()},
		{tar.Header{Name: "usr/local/bin/agentmesh", Typeflag: tar.TypeReg, Mode: 0o755}, binary},
	} {
		f.ModTime, f.Size, f.Format = r.date, int64(len(f.data)), tar.FormatUSTAR
		if err := w.WriteHeader(&f.Header); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.data); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data.Bytes())), nil },
		tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, err
	}
	base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	image, err := mutate.Append(base, mutate.Addendum{Layer: layer, History: v1.History{Created: v1.Time{Time: r.date}, CreatedBy: "release"}})
	if err != nil {
		return nil, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Created = "linux", arch, v1.Time{Time: r.date}
	const program = "/usr/local/bin/agentmesh"
	config.Config = v1.Config{
		User: user, Entrypoint: []string{program}, Cmd: []string{"serve"}, ExposedPorts: map[string]struct{}{"3141/tcp": {}},
		Env:     []string{"PATH=/usr/local/bin", "AGENTMESH_DATA=/data", "AGENTMESH_LISTEN=0.0.0.0:3141"},
		Volumes: map[string]struct{}{"/data": {}},
		Labels: map[string]string{
			"org.opencontainers.image.title": "agentmesh", "org.opencontainers.image.version": r.version, "org.opencontainers.image.description": summary,
			"org.opencontainers.image.source": homepage, "org.opencontainers.image.licenses": "Apache-2.0",
		},
		Healthcheck: &v1.HealthConfig{
			Test: []string{"CMD", program, "status", "--json"}, Interval: 30 * time.Second, Timeout: 5 * time.Second, StartPeriod: 10 * time.Second, Retries: 3,
		},
	}
	return mutate.ConfigFile(image, config)
}

// writeImage writes the images as one OCI layout in a tar file, which podman load, docker load and skopeo read.
func (r release) writeImage(images []mutate.IndexAddendum) (err error) {
	folder, err := os.MkdirTemp(r.out, ".image-*")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	l, err := layout.Write(folder, empty.Index)
	if err != nil {
		return err
	}
	index := mutate.AppendManifests(mutate.IndexMediaType(empty.Index, types.OCIImageIndex), images...)
	name := map[string]string{"org.opencontainers.image.ref.name": "agentmesh:" + r.version}
	if err := l.AppendIndex(index, layout.WithAnnotations(name)); err != nil {
		return err
	}
	var data bytes.Buffer
	w := tar.NewWriter(&data)
	err = fs.WalkDir(os.DirFS(folder), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := os.ReadFile(filepath.Join(folder, filepath.FromSlash(name)))
		if err != nil {
			return err
		}
		header := tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(content)), ModTime: r.date, Format: tar.FormatUSTAR}
		if err := w.WriteHeader(&header); err != nil {
			return err
		}
		_, err = w.Write(content)
		return err
	})
	if err := errors.Join(err, w.Close()); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(r.out, "agentmesh_"+r.version+"_oci.tar"), data.Bytes(), 0o644)
}
