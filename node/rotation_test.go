package node_test

import (
	"bytes"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
)

// TestKeyRotation: a rotation keeps the id, and the directory has what peers need to accept the new key by
// themselves. A peer that does not know the new key yet gets the message later (AM-60).
func TestKeyRotation(t *testing.T) {
	mesh := meshtest.New(t)
	var saved *signing.PrivateKey
	chris := mesh.Node("chris", func(cfg *node.Config) {
		cfg.SaveKey = func(k *signing.PrivateKey, _ wire.Value) error { saved = k; return nil }
	})
	sarah := mesh.Node("sarah", nil)
	out := to("", "conv_1", "hello")
	out.To, out.Address = sarah.ID(), ""
	if sent := mustSend(t, chris.Node, out, 10*time.Second); sent.State != owner.SendDelivered {
		t.Fatalf("before: %+v", sent)
	}
	id, old := chris.ID(), chris.Card().PublicKey
	list, err := chris.Registrar().RotateKey(t.Context())
	if err != nil || list[0].Error != "" {
		t.Fatalf("RotateKey = %+v, %v", list, err)
	}
	if chris.ID() != id || chris.Card().PublicKey == old || saved == nil || saved.PublicText() != chris.Card().PublicKey {
		t.Errorf("after the rotation: id %s, key changed %v, saved %v", chris.ID(), chris.Card().PublicKey != old, saved != nil)
	}
	keys, err := mesh.Directory().Keys(t.Context(), id)
	if err != nil || len(keys.Keys) != 2 || keys.Keys[1].PreviousProof == "" {
		t.Errorf("keys at the directory: %+v, %v", keys, err)
	}
	// Sarah has just fetched the card and fetches it again after a minute at the earliest (AM-11). We must not give up.
	sent := mustSend(t, chris.Node, out, 10*time.Second)
	if sent.State != owner.SendQueued || sent.Err.Code != wire.InvalidSignature {
		t.Errorf("after: %+v, want another attempt", sent)
	}
	// Her own message gets its answer at once: she looks up the key that signed the answer.
	back := out
	back.To, back.Conv = chris.ID(), "conv_2"
	if sent := mustSend(t, sarah.Node, back, 30*time.Second); sent.State != owner.SendDelivered || sent.Reply == nil {
		t.Errorf("sarah's message: %+v, want its verified answer", sent)
	}
	if asks := pendingAsks(t, sarah); len(asks) != 0 {
		t.Errorf("sarah's owner is asked: %+v", asks)
	}
}

// TestRestartAfterRotation: a peer that does not know the new key yet gets the message later, even if the process that
// rotated the key has ended, or the directory has not followed the rotation.
func TestRestartAfterRotation(t *testing.T) {
	for _, cut := range []bool{false, true} {
		mesh, line := meshtest.New(t), &cutLine{passLookups: true}
		var next *signing.PrivateKey
		configure := func(cfg *node.Config) {
			cfg.Directories = []*client.Directory{client.NewDirectory(mesh.URL, cfg.HTTP, line)}
			cfg.SaveKey = func(k *signing.PrivateKey, _ wire.Value) error { next = k; return nil }
			if next != nil {
				cfg.Identity.Key = next
				card, err := wire.ParseCard(cfg.Identity.Card.Tree.With("public_key", wire.Text(next.PublicText())), wire.CardRules{AllowHTTP: func(string) bool { return true }})
				if err != nil {
					t.Fatal(err)
				}
				cfg.Identity.Card = card
			}
		}
		chris, sarah := mesh.Node("chris", configure), mesh.Node("sarah", nil)
		out := to("", "conv_1", "hello")
		out.To, out.Address = sarah.ID(), ""
		if sent := mustSend(t, chris.Node, out, 10*time.Second); sent.State != owner.SendDelivered {
			t.Fatalf("before: %+v", sent)
		}
		line.off.Store(cut)
		if list, err := chris.Registrar().RotateKey(t.Context()); err != nil || (list[0].Error != "") != cut {
			t.Fatalf("RotateKey = %+v, %v", list, err)
		}
		chris = mesh.Restart(chris, configure)
		sent := mustSend(t, chris.Node, out, 10*time.Second)
		if sent.State != owner.SendQueued || sent.Err.Code != wire.InvalidSignature {
			t.Errorf("after the restart, line cut %v: %+v, want another attempt", cut, sent)
		}
	}
}

// TestOutboxEntryAfterRotation: after a rotation a queued message is sent with the same id and a signature of the new
// key.
func TestOutboxEntryAfterRotation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &wireTransport{deliver: failWith(&client.SendError{Retry: true})}
		l := loneNode(t, t.TempDir(), w, func(cfg *node.Config) {
			cfg.SaveKey = func(*signing.PrivateKey, wire.Value) error { return nil }
		})
		defer l.stop()
		mustSend(t, l.Node, to("ann", "conv_1", "hello"), time.Minute)
		if _, err := l.Registrar().RotateKey(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		first, last := w.seen[0].Message, w.seen[len(w.seen)-1].Message
		key, err := signing.ParsePublicKey(l.Card().PublicKey)
		if err != nil {
			t.Fatal(err)
		}
		_, err = key.VerifyValue(last.Tree.Without("signature"), last.Signature, signing.Window{}, time.Now())
		if first.ID != last.ID || err != nil {
			t.Errorf("sent again as %s: %v", last.Tree.JSON(), err)
		}
	})
}

// cutLine is a connection to a directory that the test can cut.
type cutLine struct {
	off         atomic.Bool
	passLookups bool // even while the line is cut
}

func (c *cutLine) RoundTrip(r *http.Request) (*http.Response, error) {
	if c.off.Load() && !(c.passLookups && r.Method == http.MethodGet) {
		return nil, errors.New("the line is cut")
	}
	return http.DefaultTransport.RoundTrip(r)
}

// TestRotationOverRestart: a directory that was unreachable during a rotation gets both proofs after a restart, and
// the old private key is never in the database. If the old key is lost, the directory gets a replaced key (AM-60).
func TestRotationOverRestart(t *testing.T) {
	for _, lost := range []bool{false, true} {
		mesh, dir, line := meshtest.New(t), t.TempDir(), &cutLine{}
		old := meshtest.Key("lone")
		var next *signing.PrivateKey
		configure := func(cfg *node.Config) {
			cfg.Directories = []*client.Directory{client.NewDirectory(mesh.URL, cfg.HTTP, line)}
			if next != nil {
				cfg.Identity.Key = next
				card, err := wire.ParseCard(cfg.Identity.Card.Tree.With("public_key", wire.Text(next.PublicText())), wire.CardRules{AllowHTTP: func(string) bool { return true }})
				if err != nil {
					t.Fatal(err)
				}
				cfg.Identity.Card = card
			}
			cfg.SaveKey = func(k *signing.PrivateKey, _ wire.Value) error { next = k; return nil }
			cfg.RetiredKey = func(fingerprint string) (*signing.PrivateKey, error) {
				if lost || fingerprint != old.Public().Fingerprint() {
					return nil, fs.ErrNotExist
				}
				return old, nil
			}
		}
		credential := client.NewCredential()
		same := func(cfg *node.Config) { configure(cfg); cfg.Credential = credential }
		l := loneNode(t, dir, &wireTransport{deliver: takes}, same)
		if _, err := l.Registrar().Register(t.Context(), ""); err != nil {
			t.Fatal(err)
		}
		id := l.ID()
		line.off.Store(true)
		if list, err := l.Registrar().RotateKey(t.Context()); err != nil || list[0].Error == "" {
			t.Fatalf("RotateKey over a cut line = %+v, %v", list, err)
		}
		l.stop()
		text, err := old.MarshalText()
		if err != nil {
			t.Fatal(err)
		}
		secret, _ := pem.Decode(text)
		files, err := filepath.Glob(filepath.Join(dir, "*"))
		if err != nil || len(files) == 0 {
			t.Fatalf("files %v, %v", files, err)
		}
		for _, name := range files {
			data, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			for _, form := range []string{string(secret.Bytes), base64.StdEncoding.EncodeToString(secret.Bytes), "PRIVATE KEY"} {
				if bytes.Contains(data, []byte(form)) {
					t.Errorf("%s holds the private key", filepath.Base(name))
				}
			}
		}
		line.off.Store(false)
		again := loneNode(t, dir, &wireTransport{deliver: takes}, same)
		if _, err := again.Registrar().Register(t.Context(), ""); err != nil {
			t.Fatal(err)
		}
		keys, err := mesh.Directory().Keys(t.Context(), id)
		if err != nil || len(keys.Keys) != 2 && !lost {
			t.Fatalf("keys at the directory: %+v, %v", keys, err)
		}
		last := keys.Keys[len(keys.Keys)-1]
		if (last.PreviousProof == "") != lost || last.PublicKey != next.PublicText() || again.ID() != id {
			t.Errorf("lost %v: the directory has %+v", lost, last)
		}
		again.stop()
	}
}
