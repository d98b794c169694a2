package main

import (
	"bytes"
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/template"
)

//go:embed install.sh
var installerText string

var installer = template.Must(template.New("").Parse(installerText))

// readSigner returns the public half of the SSH key in a file: its type and its key, without the comment.
func readSigner(key string) (string, error) {
	data, err := os.ReadFile(key + ".pub")
	if err != nil {
		return "", fmt.Errorf("the public half of the key: %w", err)
	}
	fields := strings.Fields(string(data))
	if len(fields) < 2 || strings.ContainsAny(fields[0]+fields[1], "'") {
		return "", fmt.Errorf("%s.pub is no SSH public key", key)
	}
	return fields[0] + " " + fields[1], nil
}

// writeInstaller writes install.sh, which installs the release from the folder at url after it has verified the signature
// of signer. Without url or signer it writes nothing: what cannot be verified is not installed.
func writeInstaller(dir, version, url, signer string) error {
	if url == "" || signer == "" {
		return nil
	}
	var text bytes.Buffer
	err := installer.Execute(&text, struct{ Version, URL, Signer, Namespace string }{version, strings.TrimSuffix(url, "/"), signer, signatureNamespace})
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "install.sh"), text.Bytes(), 0o755)
}
