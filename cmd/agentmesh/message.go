package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/agentmesh/agentmesh/cmd/internal/config"
	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/cmd/internal/terminal"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
)

// messageCmd has commands to debug another implementation. They need no data directory and no network.
type messageCmd struct {
	Canonical messageCanonicalCmd `cmd:"" help:"Print the bytes that a signature covers: the object without its top-level signature, in canonical form."`
	Sign      messageSignCmd      `cmd:"" help:"Sign a message and print it."`
	Verify    messageVerifyCmd    `cmd:"" help:"Verify a signature. Exit code 0: valid, 1: invalid, 65: malformed message or refused key."`
}

// readObject reads one JSON object from a file or standard input with the strict parser (AM-12).
func (a *app) readObject(name string) (wire.Value, error) {
	data, err := a.ReadInput(name)
	if err != nil {
		return wire.Value{}, err
	}
	v, err := wire.ParseObject(data)
	if err != nil {
		return wire.Value{}, exit.Fail(exit.Input, fmt.Errorf("%s is refused: %w", name, err))
	}
	return v, nil
}

type messageCanonicalCmd struct {
	Form string `default:"jcs" enum:"jcs,plain,es,ascii,html" help:"Canonical form: ${enum}."` // AM-14
	File string `arg:"" help:"File with a JSON object, or - for standard input."`
}

func (c *messageCanonicalCmd) Run(_ context.Context, a *app) error {
	v, err := a.readObject(c.File)
	if err != nil {
		return err
	}
	for _, f := range signing.Forms() {
		if f.String() == c.Form {
			_, err = a.Write(signing.Canonical(v.Without("signature"), f))
		}
	}
	return err
}

type messageSignCmd struct {
	Key  string `required:"" placeholder:"FILE" help:"Private key: Ed25519 (PKCS#8 PEM), age identity, or OpenPGP."`
	File string `arg:"" help:"File with a message, or - for standard input. An existing signature is replaced."`
}

func (c *messageSignCmd) Run(_ context.Context, a *app) error {
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

// readKey reads a private key for debugging. It warns about a file that other users may read, but does not refuse it.
func (a *app) readKey(file string) (*signing.PrivateKey, error) {
	key, err := signing.ReadKeyFile(file, a.readKeyPassphrase)
	if errors.Is(err, signing.ErrKeyFileMode) {
		a.Note("%s may be read by other users of this machine", file)
		var data []byte
		if data, err = os.ReadFile(file); err == nil {
			data, err = wire.FileText(data)
		}
		if err == nil {
			key, err = signing.ParseKeyFile(data, a.readKeyPassphrase)
		}
	}
	if err != nil {
		return nil, exit.Fail(exit.Input, fmt.Errorf("read key %s: %w", file, err))
	}
	return key, nil
}

type messageVerifyCmd struct {
	PublicKey string `required:"" placeholder:"FILE|KEY" help:"Public key, in any format that a card may use, or a file with the key or with the card."`
	Signed    string `placeholder:"FILE" help:"File with the bytes that the other implementation signed, to show where they differ."`
	File      string `arg:"" help:"File with a signed message, or - for standard input."`
}

// verdict is the result of message verify.
type verdict struct {
	Verified      bool   `json:"verified"`
	Form          string `json:"form,omitempty"` // the canonical form that matched
	Key           string `json:"key"`            // fingerprint
	Kind          string `json:"kind"`
	DerivedID     string `json:"derived_id"` // the agent id that is derived from the key (AM-2)
	From          string `json:"from"`
	FromIsDerived bool   `json:"from_is_derived"`
	Digest        string `json:"digest,omitempty"` // SHA-256 of the signed bytes
	Reason        string `json:"reason,omitempty"`
	Diagnosis     string `json:"diagnosis,omitempty"`
	Expected      string `json:"expected,omitempty"` // the bytes to sign, around the first difference
	Signed        string `json:"signed,omitempty"`   // the bytes that were signed, at the same place
}

func (c *messageVerifyCmd) Run(_ context.Context, a *app) error {
	v, err := a.readObject(c.File)
	if err != nil {
		return err
	}
	m, err := wire.ParseMessage(v)
	if err != nil {
		return exit.Fail(exit.Input, fmt.Errorf("refused: %w", err))
	}
	keys, err := signing.ReadPublicKeys(c.PublicKey)
	if err != nil {
		return exit.Fail(exit.Input, err)
	}
	key, now := keys[0], time.Now() // the other keys only help to explain a signature that is not valid
	if err := key.Usable(now); err != nil {
		return exit.Fail(exit.Input, err)
	}
	out := verdict{
		Key: key.Fingerprint(), Kind: string(key.Kind()),
		DerivedID: string(key.AgentID()), From: string(m.From), FromIsDerived: m.From == key.AgentID(),
	}
	checked, err := key.VerifyValue(v.Without("signature"), m.Signature, signatureWindow(m.Time), now)
	if err != nil {
		out.Reason = err.Error()
		const tries = 2000 // a second of work for a message of usual size
		d := signing.Explain(v, m.Signature, keys, signatureWindow(m.Time), now, tries)
		if c.Signed != "" {
			if d.Signed, err = a.ReadInput(c.Signed); err != nil {
				return err
			}
			d.Mistakes = []string{"the signature is valid for the bytes in the file"}
			if err = key.Verify(d.Signed, m.Signature, signatureWindow(m.Time), now); err != nil {
				d.Mistakes = []string{"the signature is not valid for the bytes in the file either, so the key or the signature does not belong to these bytes"}
			}
		}
		out.Diagnosis = d.String()
		out.Expected, out.Signed = d.Excerpts()
	} else {
		out.Verified, out.Form, out.Digest = true, checked.Form.String(), fmt.Sprintf("%x", checked.Digest)
	}
	return cmp.Or(a.report(out, func() { a.showVerdict(out) }), exit.Unless(out.Verified, exit.No))
}

func (a *app) showVerdict(v verdict) {
	if v.Verified {
		a.Print("valid signature: canonical form %s, key %s", v.Form, v.Key)
		return
	}
	a.Print("%s", v.Reason)
	a.Print("%s", v.Diagnosis)
	if v.Signed != "" || v.Expected != "" {
		a.Print("must be: %s", terminal.Clean(v.Expected))
		a.Print("signed:  %s", terminal.Clean(v.Signed))
	}
}

// signatureWindow returns the window in which the OpenPGP signature of a message with time t must have been made. It is
// the window of AM-20, but around the time of the message, because a stored message may be old.
func signatureWindow(t time.Time) signing.Window {
	w := config.Default().Window
	return signing.Window{From: t.Add(-w.Past), To: t.Add(w.Future)}
}
