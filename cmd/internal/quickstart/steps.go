package quickstart

import (
	"bytes"
	"cmp"
	"embed"
	"encoding/json"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"runtime"
	"strings"

	template "github.com/DataDog/datadog-agent/pkg/template/text"

	"github.com/agentmesh/agentmesh/cmd/internal/config"
	"github.com/agentmesh/agentmesh/cmd/internal/datadir"
	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/cmd/internal/terminal"
	"github.com/agentmesh/agentmesh/docs/operations"
	"github.com/agentmesh/agentmesh/node/atomicfile"
)

//go:embed text
var texts embed.FS

var templates = template.Must(template.New("").Funcs(template.FuncMap{
	"yaml": func(text string) (string, error) {
		data, err := json.Marshal(text) // YAML reads JSON strings
		return string(data), err
	},
	"sh": terminal.QuoteShell,
}).ParseFS(texts, "text/*"))

func render(kind string, from any) ([]byte, error) {
	var b bytes.Buffer
	if err := templates.ExecuteTemplate(&b, kind+".yaml", from); err != nil {
		return nil, fmt.Errorf("write the configuration: %w", err)
	}
	return b.Bytes(), nil
}

// steps describes what is left to do, for the template in steps.txt and for --json.
type steps struct {
	Kind   string `json:"kind"` // directory or agent
	Data   string `json:"data"`
	File   string `json:"config"`
	Unit   string `json:"unit,omitempty"` // file with the systemd unit
	Domain string `json:"name,omitempty"`
	Health string `json:"health,omitempty"`

	// These are only for the template. Program is the path of the program. The commands for a person begin with Run, and
	// the command for cron begins with Backup. Backups is the folder of the backups.
	Mode, User, Program, Run, Backup, Backups string `json:"-"`
	TLS, NewUser                              bool   `json:"-"`
	Install                                   string `json:"-"` // the program, if it must move to Program
}

// finish prints what is left to do. On Linux, it first writes the systemd unit of a process with a public name.
func (g *NetworkFlags) finish(e Env, c config.Config, kind string) error {
	file, err := filepath.Abs(e.File)
	if err != nil {
		return exit.Fail(exit.Config, fmt.Errorf("find the configuration: %w", err))
	}
	s := steps{
		Kind: kind, Data: string(e.Dir), File: file, Domain: g.Domain, Mode: c.Registration.Mode, User: g.User, TLS: g.TLS,
		Backups: "$HOME/agentmesh-backups", Program: "agentmesh",
	}
	if g.Domain != "" {
		s.Health = c.PublicURL + "/readyz"
	}
	if path, err := os.Executable(); err == nil {
		if s.Program = path; isTemporary(path) {
			s.Install, s.Program = path, "/usr/local/bin/agentmesh"
		}
	}
	data := " --data " + terminal.QuoteShell(s.Data)
	if file != e.Dir.Path(datadir.FileConfig) {
		data += " --config " + terminal.QuoteShell(file)
	}
	s.Run, s.Backup = "agentmesh"+data, terminal.QuoteShell(s.Program)+data // cron may not find it by its name
	if runtime.GOOS == "linux" && g.Domain != "" {
		s.Unit, s.Backups, s.Run = e.Dir.Path("agentmesh.service"), "/var/backups", "sudo -u "+s.User+" "+s.Run
		s.Backup = "sudo -u " + s.User + " " + s.Backup
		_, err := user.Lookup(s.User)
		s.NewUser = err != nil
		if err := atomicfile.WriteNew(s.Unit, []byte(s.unit(kind))); err != nil {
			return exit.Fail(exit.Config, fmt.Errorf("write the systemd unit: %w", err))
		}
	}
	if e.JSON {
		return e.UI.JSON(s)
	}
	var b bytes.Buffer
	if err := templates.ExecuteTemplate(&b, "steps", s); err != nil {
		return fmt.Errorf("write what is left to do: %w", err)
	}
	e.Print("%s", strings.TrimRight(b.String(), "\n"))
	return nil
}

// unit returns the systemd unit for the process: the unit that the packages install, with the paths of this machine.
func (s steps) unit(kind string) string {
	lines := strings.Split(string(operations.Unit), "\n")
	out := lines[:0:0]
	for _, line := range lines {
		key, _, _ := strings.Cut(line, "=")
		switch key {
		case "Description":
			line = "Description=AgentMesh " + kind + " " + cmp.Or(s.Domain, s.Data)
		case "User", "Group":
			line = key + "=" + s.User
		case "StateDirectory":
			if s.Data != "/var/lib/agentmesh" {
				line = "ReadWritePaths=" + quoteUnit(s.Data)
			}
		case "StateDirectoryMode":
			if s.Data != "/var/lib/agentmesh" {
				continue
			}
		case "Environment":
			line = "Environment=" + quoteUnit("AGENTMESH_DATA="+s.Data)
		case "ExecStart":
			line = "ExecStart=" + quoteUnit(s.Program) + " serve"
			if s.File != filepath.Join(s.Data, datadir.FileConfig) {
				line += " --config " + quoteUnit(s.File)
			}
			line = strings.ReplaceAll(line, "$", "$$") // systemd would replace $NAME with the value of a variable
		case "ProtectHome":
			if isHome(s.Data) || isHome(s.Program) {
				line = "ProtectHome=no"
			}
		case "AmbientCapabilities":
			if !s.TLS {
				continue
			}
		case "CapabilityBoundingSet":
			if !s.TLS {
				line = "CapabilityBoundingSet="
			}
		}
		out = append(out, line)
	}
	return strings.Join(out, "\n")
}

// isTemporary reports whether a path is in a folder that the system empties, or that systemd hides from the service.
func isTemporary(path string) bool {
	for _, dir := range []string{"/tmp", "/var/tmp", "/dev/shm", os.TempDir()} {
		if strings.HasPrefix(path, filepath.Clean(dir)+"/") {
			return true
		}
	}
	return false
}

// isHome reports whether ProtectHome hides a path.
func isHome(path string) bool {
	_, top, _ := strings.Cut(path, "/")
	top, _, _ = strings.Cut(top, "/")
	return top == "home" || top == "root"
}

// quoteUnit quotes a value for a systemd unit.
func quoteUnit(text string) string {
	text = strings.ReplaceAll(text, "%", "%%")
	if strings.ContainsAny(text, " \t\"'\\") {
		return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(text) + `"`
	}
	return text
}
