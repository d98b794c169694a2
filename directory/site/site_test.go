package site

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/node/goldentest"
)

// TestReadLogo: a logo is a small raster image; SVG, which can have scripts, is refused.
func TestReadLogo(t *testing.T) {
	for name, tt := range map[string]struct {
		content string
		wrong   bool
	}{
		"png":   {"\x89PNG\r\n\x1a\n0000", false},
		"jpeg":  {"\xff\xd8\xff\xe0", false},
		"webp":  {"RIFF0000WEBPVP8 ", false},
		"svg":   {`<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>`, true},
		"html":  {"<html><script>alert(1)</script>", true},
		"large": {"\x89PNG\r\n\x1a\n" + strings.Repeat("0", maxLogo), true},
	} {
		file := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(file, []byte(tt.content), 0o600); err != nil {
			t.Fatal(err)
		}
		data, err := ReadLogo(file)
		if !tt.wrong && (err != nil || string(data) != tt.content) {
			t.Errorf("%s: %q, %v", name, data, err)
		}
		if tt.wrong && (err == nil || !goldentest.Says(t, name, strings.ReplaceAll(err.Error(), file, "FILE"))) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := ReadLogo(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("no error for a missing file")
	}
}
