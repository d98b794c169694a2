package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
)

// LinkToken reads the secret of a link. It returns "" if the link has no secret.
func (s Source) LinkToken(l bridge.Link) (client.Credential, error) {
	text, err := s.Secret("link "+l.Name, l.TokenFile)
	return client.Credential(text), err
}

// Secret reads a secret from a file that the configuration names, or returns "" if file is "". It refuses a file that
// every user can read or write. Errors begin with subject, which is what the secret belongs to, such as "link home".
func (s Source) Secret(subject, file string) (string, error) {
	text, err := s.InviteCode(subject, file)
	if err != nil || file == "" {
		return "", err
	}
	if info, err := os.Stat(s.ResolvePath(file)); err == nil && runtime.GOOS != "windows" && info.Mode().Perm()&0o007 != 0 { // a group may read it
		return "", fmt.Errorf("%s: the file %s with the secret is open to every user: chmod o= it", subject, file)
	}
	return text, nil
}

// InviteCode is [Source.Secret] for a code with which the node registers. Its file may be open to every user: the code
// came by mail and is worth nothing once it is used.
func (s Source) InviteCode(subject, file string) (string, error) {
	if file == "" {
		return "", nil
	}
	data, err := os.ReadFile(s.ResolvePath(file))
	if err == nil {
		data, err = wire.FileText(data)
	}
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
	try := func(key string, command []string) {
		if len(command) == 0 {
			return
		}
		program := s.ResolveCommand(command)[0]
		if _, err := exec.LookPath(program); errors.Is(err, fs.ErrPermission) {
			out = append(out, fmt.Sprintf("%s: %s is not executable; run chmod +x on it", key, program))
		} else if err != nil {
			out = append(out, fmt.Sprintf("%s: there is no program %s", key, program))
		}
	}
	for i, h := range cfg.Hooks {
		try(fmt.Sprintf("hooks[%d].exec", i), h.Exec)
	}
	try("guard.exec", cfg.Guard.Exec)
	return out
}

// MissingFiles describes the files that serve needs, such as those of tokens, keys, certificates and schemas, and that
// it could not use now. They are not errors of the configuration: a file may be made later.
func (s Source) MissingFiles(cfg Config) []string {
	var out []string
	add := func(key string, err error) {
		if err != nil {
			out = append(out, key+": "+strings.TrimPrefix(err.Error(), key+": "))
		}
	}
	tryOpen := func(key, file string) {
		if file == "" {
			return
		}
		f, err := os.Open(s.ResolvePath(file))
		if err == nil {
			_ = f.Close() // nothing was written
		}
		add(key, err)
	}
	trySecret := func(key, file string, isWebhook bool) {
		text, err := s.Secret(key, file)
		if err == nil && isWebhook {
			_, err = client.ParseWebhookSecrets(text)
		}
		add(key, err)
	}
	_, err := s.InviteCode("invite_file", cfg.InviteFile)
	add("invite_file", err)
	trySecret("mess.invite_file", cfg.MESS.InviteFile, false)
	trySecret("calendar.password_file", cfg.Calendar.PasswordFile, false)
	trySecret("notify.secret_file", cfg.Notify.SecretFile, cfg.Notify.Webhook != "" && cfg.Notify.Format != "ntfy")
	if cfg.Store.KeyFile != "" {
		_, err := signing.ReadSharedKey(s.ResolvePath(cfg.Store.KeyFile))
		add("store.key_file", err)
	}
	tryOpen("tls.cert_file", cfg.TLS.CertFile)
	tryOpen("tls.key_file", cfg.TLS.KeyFile)
	tryOpen("site.logo", cfg.Site.Logo)
	for key, c := range map[string]Connection{"store.postgres": cfg.Store.Postgres, "store.listen_url": cfg.Store.ListenURL} {
		_, err := s.ConnectionString(key, c)
		add(key, err)
	}
	for i, schema := range cfg.Schemas {
		tryOpen(fmt.Sprintf("schemas[%d].file", i), schema.File)
	}
	trySecret("guard.secret_file", cfg.Guard.SecretFile, cfg.Guard.Webhook != "")
	for i, h := range cfg.Hooks {
		trySecret(fmt.Sprintf("hooks[%d].secret_file", i), h.SecretFile, h.Webhook != "")
	}
	for i, l := range cfg.Links {
		trySecret(fmt.Sprintf("links[%d].token_file", i), l.TokenFile, false)
	}
	for i, space := range cfg.MEW.Spaces {
		for j, p := range space.Participants {
			trySecret(fmt.Sprintf("mew.spaces[%d].participants[%d].token_file", i, j), p.TokenFile, false)
		}
	}
	return out
}

// ShortenPath returns the path of a file as the configuration should name it: relative if the file is in the folder of the
// configuration, so that the folder can move.
func (s Source) ShortenPath(name string) (string, error) {
	abs, err := filepath.Abs(name)
	if err != nil {
		return "", err
	}
	if inside, err := filepath.Rel(s.ResolvePath("."), abs); err == nil && filepath.IsLocal(inside) {
		return inside, nil
	}
	return abs, nil
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
