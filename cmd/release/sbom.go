package main

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"time"
)

// These types are the part of SPDX 2.3 that describes a binary: a package for the binary and one for each module in it.

type spdxDocument struct {
	Version       string             `json:"spdxVersion"`
	DataLicense   string             `json:"dataLicense"`
	ID            string             `json:"SPDXID"`
	Name          string             `json:"name"`
	Namespace     string             `json:"documentNamespace"`
	Creation      spdxCreation       `json:"creationInfo"`
	Packages      []spdxPackage      `json:"packages"`
	Relationships []spdxRelationship `json:"relationships"`
}

type spdxCreation struct {
	Created  string   `json:"created"`
	Creators []string `json:"creators"`
}

type spdxPackage struct {
	ID               string         `json:"SPDXID"`
	Name             string         `json:"name"`
	Version          string         `json:"versionInfo"`
	DownloadLocation string         `json:"downloadLocation"`
	FilesAnalyzed    bool           `json:"filesAnalyzed"`
	Purpose          string         `json:"primaryPackagePurpose"`
	Checksums        []spdxChecksum `json:"checksums,omitempty"`
	Concluded        string         `json:"licenseConcluded"`
	Declared         string         `json:"licenseDeclared"`
	Copyright        string         `json:"copyrightText"`
	Comment          string         `json:"comment,omitempty"`
	Refs             []spdxRef      `json:"externalRefs"`
}

type spdxChecksum struct {
	Algorithm string `json:"algorithm"`
	Value     string `json:"checksumValue"`
}

type spdxRef struct {
	Category string `json:"referenceCategory"`
	Type     string `json:"referenceType"`
	Locator  string `json:"referenceLocator"`
}

type spdxRelationship struct {
	From string `json:"spdxElementId"`
	Type string `json:"relationshipType"`
	To   string `json:"relatedSpdxElement"`
}

const (
	noAssertion = "NOASSERTION"
	documentID  = "SPDXRef-DOCUMENT"
	binaryID    = "SPDXRef-agentmesh"
	module      = "github.com/agentmesh/agentmesh"
)

// sbom returns the SBOM of a binary. It depends only on the arguments.
func sbom(name, version string, at time.Time, p platform, sum [32]byte, parts []part) ([]byte, error) {
	digest := hex.EncodeToString(sum[:])
	doc := spdxDocument{
		Version: "SPDX-2.3", DataLicense: "CC0-1.0", ID: documentID, Name: name,
		Namespace: "https://" + module + "/sbom/" + name + "-" + digest,
		Creation:  spdxCreation{at.UTC().Format(time.RFC3339), []string{"Tool: agentmesh-release-" + version}},
		Packages: []spdxPackage{{
			ID: binaryID, Name: "agentmesh", Version: version, DownloadLocation: noAssertion, Purpose: "APPLICATION",
			Checksums: []spdxChecksum{{"SHA256", digest}},
			Concluded: "Apache-2.0", Declared: "Apache-2.0", Copyright: noAssertion,
			Comment: fmt.Sprintf("The file %s for %s.", p.binary(), p),
			Refs:    []spdxRef{purl("golang", module, "v"+version)},
		}},
		Relationships: []spdxRelationship{{documentID, "DESCRIBES", binaryID}},
	}
	for _, part := range parts {
		pkg := spdxPackage{
			ID: packageID(part), Name: part.path, Version: part.version, DownloadLocation: noAssertion, Purpose: "LIBRARY",
			Concluded: part.licence, Declared: part.licence, Copyright: noAssertion, Refs: []spdxRef{purl("golang", part.path, part.version)},
		}
		if part.sum != "" {
			pkg.Comment = "Checksum in go.sum: " + part.sum
		}
		doc.Packages = append(doc.Packages, pkg)
		doc.Relationships = append(doc.Relationships, spdxRelationship{binaryID, "CONTAINS", pkg.ID})
	}
	data, err := json.MarshalIndent(doc, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("write SBOM: %w", err)
	}
	return append(data, '\n'), nil
}

func purl(kind, path, version string) spdxRef {
	version = strings.ReplaceAll(strings.TrimPrefix(version, "go"), "+", "%2B")
	return spdxRef{"PACKAGE-MANAGER", "purl", "pkg:" + kind + "/" + path + "@" + version}
}

var notOfID = regexp.MustCompile(`[^A-Za-z0-9.-]+`)

// packageID returns the id of a part, in the characters that SPDX allows.
func packageID(p part) string {
	return "SPDXRef-" + notOfID.ReplaceAllString(p.path+"-"+p.version, "-")
}
