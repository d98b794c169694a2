package daemon

import (
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/cmd/internal/config"
)

// TestTLSFilesBesideTheConfiguration: relative paths of a certificate start at the folder of the configuration file.
func TestTLSFilesBesideTheConfiguration(t *testing.T) {
	dir := t.TempDir()
	p := &Process{log: slog.New(slog.DiscardHandler), src: config.Source{File: filepath.Join(dir, "agentmesh.yaml")}}
	p.cfg.PublicURL = "https://mesh.example"
	p.cfg.TLS = config.TLS{CertFile: "cert.pem", KeyFile: "key.pem"}
	if _, err := p.newCertificate(); err == nil || !strings.Contains(err.Error(), filepath.Join(dir, "cert.pem")) {
		t.Errorf("a missing certificate: %v", err)
	}
}
