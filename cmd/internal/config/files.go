package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/client"
)

// LinkToken reads the secret of a link. It returns "" if the link has no secret.
func (s Source) LinkToken(l bridge.Link) (client.Credential, error) {
	text, err := s.Secret("link "+l.Name, l.TokenFile)
	return client.Credential(text), err
}

// Secret reads a secret from a file that the configuration names, or returns "" if file is "". Errors begin with subject,
// which is what the secret belongs to, such as "link home".
func (s Source) Secret(subject, file string) (string, error) {
	if file == "" {
		return "", nil
	}
	data, err := os.ReadFile(s.ResolvePath(file))
	if err != nil {
		return "", fmt.Errorf("%s: read secret: %w", subject, err)
	}
	text := strings.TrimSpace(string(data))
	if text == "" {
		return "", fmt.Errorf("%s: the file %s with the secret is empty", subject, file)
	}
	return text, nil
}

// ResolveCommand returns a command whose program is resolved as by [Source.ResolvePath]. A name without a slash stays as
// it is: it is looked up in PATH.
func (s Source) ResolveCommand(command []string) []string {
	if len(command) == 0 || !strings.ContainsAny(command[0], `/\`) {
		return command
	}
	return append([]string{s.ResolvePath(command[0])}, command[1:]...)
}

// MissingPrograms describes the programs of hooks that could not be started now. They are not errors of the
// configuration: a program may be installed later, and if a hook fails, the node tells the owner.
func (s Source) MissingPrograms(cfg Config) []string {
	var out []string
	for i, h := range cfg.Hooks {
		if len(h.Exec) == 0 {
			continue
		}
		program := s.ResolveCommand(h.Exec)[0]
		if _, err := exec.LookPath(program); errors.Is(err, fs.ErrPermission) {
			out = append(out, fmt.Sprintf("hooks[%d].exec: %s is not executable; run chmod +x on it", i, program))
		} else if err != nil {
			out = append(out, fmt.Sprintf("hooks[%d].exec: there is no program %s", i, program))
		}
	}
	return out
}

// MissingFiles describes the files that serve needs, such as those of tokens, keys, certificates and schemas, and that
// cannot be read now. They are not errors of the configuration: a file may be made later.
func (s Source) MissingFiles(cfg Config) []string {
	var out []string
	tryOpen := func(key, file string) {
		if file == "" {
			return
		}
		f, err := os.Open(s.ResolvePath(file))
		if err != nil {
			out = append(out, fmt.Sprintf("%s: %v", key, err))
			return
		}
		_ = f.Close() // nothing was written
	}
	tryOpen("invite_file", cfg.InviteFile)
	tryOpen("mess.invite_file", cfg.MESS.InviteFile)
	tryOpen("calendar.password_file", cfg.Calendar.PasswordFile)
	tryOpen("notify.secret_file", cfg.Notify.SecretFile)
	tryOpen("store.key_file", cfg.Store.KeyFile)
	tryOpen("tls.cert_file", cfg.TLS.CertFile)
	tryOpen("tls.key_file", cfg.TLS.KeyFile)
	tryOpen("site.logo", cfg.Site.Logo)
	if name, isFile := strings.CutPrefix(cfg.Store.Postgres, filePrefix); isFile {
		tryOpen("store.postgres", name)
	}
	if name, isFile := strings.CutPrefix(cfg.Store.ListenURL, filePrefix); isFile {
		tryOpen("store.listen_url", name)
	}
	for i, schema := range cfg.Schemas {
		tryOpen(fmt.Sprintf("schemas[%d].file", i), schema.File)
	}
	for i, h := range cfg.Hooks {
		tryOpen(fmt.Sprintf("hooks[%d].secret_file", i), h.SecretFile)
	}
	for i, l := range cfg.Links {
		tryOpen(fmt.Sprintf("links[%d].token_file", i), l.TokenFile)
	}
	for i, space := range cfg.MEW.Spaces {
		for j, p := range space.Participants {
			tryOpen(fmt.Sprintf("mew.spaces[%d].participants[%d].token_file", i, j), p.TokenFile)
		}
	}
	return out
}

// ResolvePath resolves a relative path against the folder of the configuration file.
func (s Source) ResolvePath(name string) string {
	if filepath.IsAbs(name) {
		return name
	}
	abs, err := filepath.Abs(filepath.Join(filepath.Dir(s.File), name))
	if err != nil {
		return name
	}
	return abs
}
