package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"text/template"
)

// formula is the template of the Homebrew formula.
var formula = template.Must(template.New("").Parse(`class Agentmesh < Formula
  desc "Directory and node for AgentMesh, the protocol between agents of different people"
  homepage "{{.Homepage}}"
  version "{{.Version}}"
  license "Apache-2.0"
{{range .Archives}}
  on_{{.System}} do
    on_{{.CPU}} do
      url "{{.URL}}"
      sha256 "{{.Sum}}"
    end
  end
{{end}}
  def install
    bin.install "agentmesh"
    bash_completion.install "completions/agentmesh.bash" => "agentmesh"
    zsh_completion.install "completions/agentmesh.zsh" => "_agentmesh"
    fish_completion.install "completions/agentmesh.fish"
  end

  service do
    run [opt_bin/"agentmesh", "serve"]
    keep_alive true
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/agentmesh version")
  end
end
`))

// writeFormula writes agentmesh.rb for the archives in dir that Homebrew can install. url is the address of the
// published files; without it, writeFormula writes nothing.
func writeFormula(dir, version, url string) error {
	if url == "" {
		return nil
	}
	type archive struct{ System, CPU, URL, Sum string }
	var archives []archive
	for _, system := range []string{"darwin", "linux"} {
		for _, arch := range []string{"amd64", "arm64"} {
			name := archiveName(version, platform{system, arch}) + ".tar.gz"
			data, err := os.ReadFile(filepath.Join(dir, name))
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return err
			}
			sum := sha256.Sum256(data)
			archives = append(archives, archive{
				System: map[string]string{"darwin": "macos", "linux": "linux"}[system], CPU: map[string]string{"amd64": "intel", "arm64": "arm"}[arch],
				URL: strings.TrimSuffix(url, "/") + "/" + name, Sum: hex.EncodeToString(sum[:]),
			})
		}
	}
	var text bytes.Buffer
	err := formula.Execute(&text, struct {
		Homepage, Version string
		Archives          []archive
	}{repository, version, archives})
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "agentmesh.rb"), text.Bytes(), 0o644)
}
