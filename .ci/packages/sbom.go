package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/CycloneDX/cyclonedx-gomod/pkg/generate/bin"
	"github.com/CycloneDX/cyclonedx-gomod/pkg/licensedetect/local"
	"github.com/rs/zerolog"
)

// writeSBOM writes the SBOM of the binary of a platform, in CycloneDX. It has no serial number and no time, so that the
// same binary has the same SBOM. It refuses a binary with a module of an unknown license.
func (r release) writeSBOM(platform string) (err error) {
	binary := filepath.Join(r.in, platform, "agentmesh")
	if _, err := os.Stat(binary); errors.Is(err, fs.ErrNotExist) {
		binary += ".exe"
	}
	// The modules are in the cache, because the binary was built here; the program itself is not. The build compared the
	// modules with go.sum, so the go command need not ask a checksum database.
	if err := errors.Join(os.Setenv("GOPROXY", "off"), os.Setenv("GONOSUMDB", "*")); err != nil {
		return err
	}
	g, err := bin.NewGenerator(binary, bin.WithIncludeStdlib(true), bin.WithVersionOverride("v"+r.version),
		bin.WithLicenseDetector(local.NewDetector(zerolog.Nop())), bin.WithLogger(zerolog.Nop()))
	if err != nil {
		return err
	}
	bom, err := g.Generate()
	if err != nil {
		return err
	}
	bom.Metadata.Component.Licenses = &cdx.Licenses{{Expression: "Apache-2.0"}}
	for i, c := range *bom.Components {
		switch {
		case c.Name == "std":
			(*bom.Components)[i].Licenses = &cdx.Licenses{{Expression: "BSD-3-Clause"}}
		case c.Evidence == nil || c.Evidence.Licenses == nil:
			return fmt.Errorf("the license of %s is unknown", c.Name)
		}
	}
	f, err := os.Create(filepath.Join(r.out, fmt.Sprintf("agentmesh_%s_%s.cdx.json", r.version, platform)))
	if err != nil {
		return err
	}
	return errors.Join(cdx.NewBOMEncoder(f, cdx.BOMFileFormatJSON).SetPretty(true).Encode(bom), f.Close())
}
