package gateway

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/agentmesh/agentmesh/node/atomicfile"
	"github.com/agentmesh/agentmesh/node/bridge/mew/capability"
	"github.com/agentmesh/agentmesh/node/bridge/mew/envelope"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/node/yamltree"
)

// DropIn is a space that the files of the reference implementation configure: a space.yaml and the folder beside it
// (MEW-D3 to MEW-D10).
type DropIn struct {
	Space     SpaceConfig
	Dir       string // the folder for tokens, logs and database (MEW-D4)
	Envelopes bool   // write the envelope log; see Journal
	Decisions bool   // write the decision log

	env func(string) string
	log *slog.Logger
}

// ReadDropIn reads a space.yaml. It ignores members that it does not know, and fails on a token or a capability that it
// cannot read (MEW-D3). The tokens of participants come from the file, from env and from the token folder. A
// participant with a token in neither env nor the folder gets a new one (MEW-D5).
func ReadDropIn(file string, env func(string) string, log *slog.Logger) (*DropIn, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	v, err := parseSpaceFile(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	d := &DropIn{Dir: stateDir(filepath.Dir(file)), env: env, log: log}
	if err := d.read(v); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if err := d.loadTokens(); err != nil {
		return nil, err
	}
	return d, nil
}

// stateDir returns the .mew folder in dir, the folder of the space.yaml, or dir if it has no such folder (MEW-D4).
func stateDir(dir string) string {
	if info, err := os.Stat(filepath.Join(dir, ".mew")); err == nil && info.IsDir() {
		return filepath.Join(dir, ".mew")
	}
	return dir
}

// read sets the space and the logs from the tree of a space.yaml.
func (d *DropIn) read(v wire.Value) error {
	space, _ := v.Get("space")
	d.Space = SpaceConfig{ID: space.GetStr("id"), Name: space.GetStr("name"), DropIn: true}
	if d.Space.ID == "" {
		return errors.New("space.id is missing")
	}
	for _, parent := range []wire.Value{v, space} {
		if subset, ok := parent.Get("invite_subset"); ok {
			if d.Space.InviteSubset, ok = subset.Boolean(); !ok {
				return errors.New("invite_subset must be true or false")
			}
		}
	}
	defaults, _ := v.Get("defaults")
	var err error
	if list, ok := defaults.Get("capabilities"); ok {
		if d.Space.Defaults, err = capability.ParseList(list); err != nil {
			return fmt.Errorf("defaults: %w", err)
		}
	}
	participants, _ := v.Get("participants")
	for _, m := range participants.Members() {
		p, err := readParticipant(m)
		if err != nil {
			return fmt.Errorf("participants.%s: %w", envelope.ToPrintable(m.Key, envelope.MaxName), err)
		}
		d.Space.Participants = append(d.Space.Participants, p)
	}
	d.readLogging(v)
	return nil
}

func readParticipant(m wire.Member) (Participant, error) {
	p := Participant{Name: m.Key}
	var ok bool
	if file, _ := m.Value.Get("output_log"); !file.IsNull() {
		if p.OutputLog, ok = file.Str(); !ok {
			return p, errors.New("output_log must be a string")
		}
	}
	if auto, _ := m.Value.Get("auto_connect"); !auto.IsNull() {
		if p.AutoConnect, ok = auto.Boolean(); !ok {
			return p, errors.New("auto_connect must be true or false")
		}
	}
	if list, _ := m.Value.Get("tokens"); !list.IsNull() {
		if list.Kind() != wire.Array {
			return p, errors.New("tokens must be a list of strings")
		}
		for t := range list.Elems() {
			token, ok := t.Str()
			if !ok || token == "" {
				return p, errors.New("tokens must be a list of strings")
			}
			p.Tokens = append(p.Tokens, token)
		}
	}
	if list, ok := m.Value.Get("capabilities"); ok && !list.IsNull() {
		var err error
		if p.Capabilities, err = capability.ParseList(list); err != nil {
			return p, err
		}
	}
	return p, nil
}

// readLogging reads gateway_logging. The environment overrides the file (MEW-D10).
func (d *DropIn) readLogging(v wire.Value) {
	g, _ := v.Get("gateway_logging")
	isOn := func(v wire.Value) bool { // a log is on unless the file switches it off
		if b, ok := v.Boolean(); ok {
			return b
		}
		enabled, _ := v.Get("enabled")
		b, ok := enabled.Boolean()
		return b || !ok
	}
	all := isOn(g)
	history, _ := g.Get("envelope_history")
	decisions, _ := g.Get("capability_decisions")
	all = override(d.env("GATEWAY_LOGGING"), all)
	d.Envelopes = all && override(d.env("ENVELOPE_HISTORY"), isOn(history))
	d.Decisions = all && override(d.env("CAPABILITY_DECISIONS"), isOn(decisions))
}

// override parses text, the value of an environment variable, as on or off. If text is neither, it returns fallback.
func override(text string, fallback bool) bool {
	switch strings.ToLower(text) {
	case "true", "1", "yes", "on":
		return true
	case "false", "0", "no", "off":
		return false
	}
	return fallback
}

// Journal returns the logs that the space.yaml or the environment switches on, or nil if both logs are off.
func (d *DropIn) Journal() *Journal {
	return NewJournal(filepath.Join(d.Dir, "logs"), d.Envelopes, d.Decisions, d.log)
}

func (d *DropIn) tokenDir() string { return filepath.Join(d.Dir, "tokens") }

// loadTokens adds the tokens of the environment and of the token folder, and makes missing ones (MEW-D5).
func (d *DropIn) loadTokens() error {
	for i := range d.Space.Participants {
		p := &d.Space.Participants[i]
		if !envelope.IsName(p.Name) {
			return fmt.Errorf("participant %q: a name must be 1 to %d bytes of printable text without / \\ # and .., and must neither be %s nor begin with \"system:\"",
				envelope.ToPrintable(p.Name, envelope.MaxName), envelope.MaxName, envelope.FromStream)
		}
		fromEnv := d.env("MEW_TOKEN_" + strings.ReplaceAll(strings.ToUpper(p.Name), "-", "_"))
		fromFile, err := d.readToken(p.Name)
		if err != nil {
			return err
		}
		if fromEnv == "" && fromFile == "" {
			fromFile = newToken()
			if err := d.KeepToken(p.Name, fromFile); err != nil {
				return err
			}
		}
		for _, token := range []string{fromEnv, fromFile} {
			if token != "" {
				p.Tokens = append(p.Tokens, token)
			}
		}
	}
	return nil
}

// maxTokenFile bounds a token file, in bytes.
const maxTokenFile = 4096

func (d *DropIn) readToken(name string) (string, error) {
	root, err := os.OpenRoot(d.tokenDir())
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	defer root.Close()
	data, err := root.ReadFile(name + ".token")
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", nil
	case err != nil:
		return "", fmt.Errorf("read the token of %s: %w", name, err)
	case len(data) > maxTokenFile:
		return "", fmt.Errorf("read the token of %s: the file is too large", name)
	}
	return strings.TrimSpace(string(data)), nil
}

// KeepToken atomically writes a token to the file in which the command-line program of the reference looks for it.
func (d *DropIn) KeepToken(name, token string) error {
	if err := os.MkdirAll(d.tokenDir(), 0o700); err != nil {
		return err
	}
	root, err := os.OpenRoot(d.tokenDir())
	if err != nil {
		return err
	}
	defer root.Close()
	if _, err := root.Stat(".gitignore"); errors.Is(err, fs.ErrNotExist) {
		if err := root.WriteFile(".gitignore", []byte("*\n!.gitignore\n"), 0o600); err != nil {
			return err
		}
	}
	return atomicfile.WriteIn(root, name+".token", []byte(token+"\n"))
}

// Reload reads the token folder again and accepts the tokens in it, because the operator may have added some (MEW-D5).
func (d *DropIn) Reload(claim func(token, space, name string) error) {
	for _, p := range d.Space.Participants {
		token, err := d.readToken(p.Name)
		if err != nil {
			d.log.Warn("token cannot be read from the folder; it admits nobody yet", "err", err)
			continue
		}
		if token == "" {
			continue
		}
		if err := claim(token, d.Space.ID, p.Name); err != nil {
			d.log.Warn("token from the folder not accepted", "err", err)
		}
	}
}

// maxYAML bounds a space.yaml, in bytes.
const maxYAML = 1 << 20

// parseSpaceFile parses a space.yaml. Numbers may have any form of YAML, as in the reference implementation.
func parseSpaceFile(data []byte) (wire.Value, error) {
	docs, err := yamltree.Parse(bytes.TrimPrefix(data, []byte("\ufeff")), yamltree.Options{
		Limits:  yamltree.Limits{Bytes: maxYAML, Depth: 33, Nodes: 100_000, Keys: 5_000, KeyBytes: maxYAML, Marks: maxYAML},
		Numbers: true,
	})
	if err != nil {
		return wire.Value{}, err
	}
	if len(docs) == 0 {
		return wire.Value{}, errors.New("the file is empty")
	}
	return docs[0].Value, nil
}
