package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"github.com/agentmesh/agentmesh/cmd/internal/config"
	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
)

// messageCmd is for people who debug another implementation: it needs no data directory and no network.
type messageCmd struct {
	Canonical messageCanonicalCmd `cmd:"" help:"Print the bytes that a signature covers: the object without its top-level signature, in canonical form."`
	Sign      messageSignCmd      `cmd:"" help:"Print the message with a signature."`
	Verify    messageVerifyCmd    `cmd:"" help:"Check a signature: exit 0 good, 1 bad, 65 malformed or refused key."`
}

// maxInput bounds what is read from a file or standard input; the strict reader has limits of its own.
const maxInput = 16 << 20

// read returns the content of a file, or of standard input for "-".
func (a *app) read(name string) ([]byte, error) {
	in := a.In
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, exit.Fail(exit.Input, err)
		}
		defer f.Close()
		in = f
	}
	data, err := io.ReadAll(io.LimitReader(in, maxInput+1))
	if err != nil {
		return nil, exit.Fail(exit.Input, fmt.Errorf("read %s: %w", name, err))
	}
	if len(data) > maxInput {
		return nil, exit.Fail(exit.Input, fmt.Errorf("%s is larger than %d bytes", name, maxInput))
	}
	return data, nil
}

// readObject reads one strict JSON object (AM-12).
func (a *app) readObject(name string) (wire.Value, error) {
	data, err := a.read(name)
	if err != nil {
		return wire.Value{}, err
	}
	v, err := wire.ParseObject(data)
	if err != nil {
		return wire.Value{}, exit.Fail(exit.Input, fmt.Errorf("refused: %w", err))
	}
	return v, nil
}

type messageCanonicalCmd struct {
	Form string `default:"jcs" enum:"jcs,plain,es,ascii,html" help:"Canonical form: ${enum} (AM-14)."`
	File string `arg:"" help:"A JSON object, - for standard input."`
}

func (c *messageCanonicalCmd) Run(a *app) error {
	v, err := a.readObject(c.File)
	if err != nil {
		return err
	}
	for _, f := range signing.Forms() {
		if f.String() == c.Form {
			_, err = a.Out.Write(signing.Canonical(v.Without("signature"), f))
		}
	}
	return err
}

type messageSignCmd struct {
	Key  string `required:"" placeholder:"FILE" help:"Private key: Ed25519 (PKCS#8 PEM), age identity, or OpenPGP."`
	File string `arg:"" help:"A message, - for standard input. A signature that is there is replaced."`
}

func (c *messageSignCmd) Run(a *app) error {
	v, err := a.readObject(c.File)
	if err != nil {
		return err
	}
	if _, err := wire.ParseDraft(v); err != nil {
		return exit.Fail(exit.Input, fmt.Errorf("refused: %w", err))
	}
	key, err := a.readKey(c.Key)
	if err != nil {
		return err
	}
	signed, err := key.SignValue(v.Without("signature"))
	if err != nil {
		return exit.Fail(exit.Input, fmt.Errorf("sign: %w", err))
	}
	a.Print("%s", signed.JSON())
	return nil
}

// readKey reads a private key of somebody who debugs: a file that others may read is worth a word, not a refusal.
func (a *app) readKey(file string) (*signing.PrivateKey, error) {
	key, err := signing.ReadKeyFile(file, a.passphrase)
	if errors.Is(err, signing.ErrKeyFileMode) {
		a.Note("%s may be read by other users of this machine", file)
		var data []byte
		if data, err = os.ReadFile(file); err == nil {
			key, err = signing.ParsePrivateKey(data)
		}
	}
	if err != nil {
		return nil, exit.Fail(exit.Input, fmt.Errorf("read key %s: %w", file, err))
	}
	return key, nil
}

type messageVerifyCmd struct {
	PublicKey string `required:"" placeholder:"FILE|KEY" help:"Public key, in any spelling a card may have, or a file with one."`
	JSON      bool   `help:"Print the result as JSON."`
	File      string `arg:"" help:"A signed message, - for standard input."`
}

// verdict is the result of a verification.
type verdict struct {
	Verified    bool   `json:"verified"`
	Form        string `json:"form,omitempty"` // the canonical form that matched
	Key         string `json:"key"`            // fingerprint
	Kind        string `json:"kind"`
	DerivedID   string `json:"derived_id"` // what the key certifies itself (AM-2)
	From        string `json:"from"`
	DerivedFrom bool   `json:"from_is_derived"`
	Digest      string `json:"digest,omitempty"` // SHA-256 of the bytes that were signed
	Reason      string `json:"reason,omitempty"`
}

func (c *messageVerifyCmd) Run(a *app) error {
	v, err := a.readObject(c.File)
	if err != nil {
		return err
	}
	m, err := wire.ParseMessage(v)
	if err != nil {
		return exit.Fail(exit.Input, fmt.Errorf("refused: %w", err))
	}
	key, err := publicKey(c.PublicKey)
	if err != nil {
		return err
	}
	now := time.Now()
	if err := key.Usable(now); err != nil {
		return exit.Fail(exit.Input, err)
	}
	out := verdict{
		Key: key.Fingerprint(), Kind: string(key.Kind()),
		DerivedID: string(key.AgentID()), From: string(m.From), DerivedFrom: m.From == key.AgentID(),
	}
	checked, err := key.VerifyValue(v.Without("signature"), m.Signature, signedAround(m.Time), now)
	if err != nil {
		out.Reason = err.Error()
	} else {
		out.Verified, out.Form, out.Digest = true, checked.Form.String(), fmt.Sprintf("%x", checked.Digest)
	}
	if err := a.showVerdict(out, c.JSON); err != nil {
		return err
	}
	if !out.Verified {
		return exit.Quietly(exit.No)
	}
	return nil
}

func (a *app) showVerdict(v verdict, asJSON bool) error {
	switch {
	case asJSON:
		return a.JSON(v)
	case v.Verified:
		a.Print("good signature: canonical form %s, key %s", v.Form, v.Key)
	default:
		a.Print("%s", v.Reason)
	}
	return nil
}

// signedAround is when an OpenPGP signature of a message of time t may have been made: the window of AM-20, seen
// from the message, since a message on file has no now.
func signedAround(t time.Time) signing.Window {
	w := config.Default().Window
	return signing.Window{From: t.Add(-w.Future), To: t.Add(w.Past)}
}

// publicKey reads a key from a file of that name, or from the text itself.
func publicKey(fileOrText string) (*signing.PublicKey, error) {
	text := fileOrText
	data, err := os.ReadFile(fileOrText)
	switch pathErr, isPath := errors.AsType[*fs.PathError](err); {
	case err == nil:
		text = string(data)
	case isPath && errors.Is(pathErr, fs.ErrPermission):
		return nil, exit.Fail(exit.Input, err)
	}
	key, err := signing.ParsePublicKey(text)
	if err != nil {
		return nil, exit.Fail(exit.Input, err)
	}
	return key, nil
}
