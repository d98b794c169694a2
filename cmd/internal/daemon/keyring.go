package daemon

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/cmd/internal/datadir"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
)

// keyring reads and changes the keys of a process's agent.
type keyring struct{ p *Process }

// changeTime bounds a change of the keys, which may be in a database elsewhere.
const changeTime = 20 * time.Second

// prepare makes keys, a credential and a card if neither the data directory nor the database has an agent. If only the
// credential was lost, it makes a new one. It encrypts new keys with passphrase, unless that is nil.
func (k keyring) prepare(ctx context.Context, passphrase []byte, base string) error {
	lost := false
	_, err := k.p.keys.Update(ctx, func(keys datadir.Keys) error {
		if keys.HasAgent() {
			lost = keys.AddCredential()
			return nil
		}
		return k.addAgent(keys, passphrase, base)
	})
	if err == nil && lost {
		k.p.log.Warn("the credential was lost, so a new one was made; a directory that lists the card accepts the new credential after the registration and the reservation of the id have ended, or after its operator runs agentmesh cards handover")
	}
	return err
}

func (k keyring) addAgent(keys datadir.Keys, passphrase []byte, base string) error {
	if err := keys.AddNew(passphrase); err != nil {
		return err
	}
	s, err := k.p.dataDir.ParseKeys(keys, func() ([]byte, error) { return passphrase, nil })
	if err != nil {
		return err
	}
	card, err := buildCard(k.p.cfg, s, wire.Value{}, base)
	if err != nil {
		return err
	}
	keys[datadir.FileCard] = datadir.CardFile(card.Tree)
	return nil
}

// read reads the secrets of the agent. It refuses a database of another agent.
func (k keyring) read(ctx context.Context) (err error) {
	if _, err = k.p.keys.Update(ctx, nil); err != nil { // only brings data directory and database to the same state
		return err
	}
	if k.p.secrets, err = k.p.dataDir.Secrets(k.p.passphrase); err != nil {
		return err
	}
	return k.p.keys.CheckAgent(ctx, k.p.secrets)
}

// save stores a rotated signing key and the card with it. It encrypts the key if the old key was encrypted.
func (k keyring) save(key *signing.PrivateKey, card wire.Value) error {
	ctx, cancel := context.WithTimeout(context.Background(), changeTime)
	defer cancel()
	_, err := k.p.keys.Update(ctx, func(keys datadir.Keys) error {
		var passphrase []byte
		ask := func() (text []byte, err error) {
			passphrase, err = k.p.passphrase()
			return passphrase, err
		}
		old, err := k.p.dataDir.ParseKeys(keys, ask) // calls ask only if a key is encrypted
		if err != nil {
			return err
		}
		if old.Key.PublicText() != k.p.node.Card().PublicKey {
			return owner.Fault(http.StatusConflict, "another process has replaced the signing key meanwhile", "see agentmesh keys show, and rotate again if you want to")
		}
		return keys.Rotate(key, old.Key, passphrase, datadir.CardFile(card))
	})
	return err
}

// readCurrent returns the signing key that was saved last, by any process. If another process has stored a new age key,
// this process starts again to use it.
func (k keyring) readCurrent() (*signing.PrivateKey, error) {
	ctx, cancel := context.WithTimeout(context.Background(), changeTime)
	defer cancel()
	written, err := k.p.keys.Update(ctx, nil)
	if err != nil {
		return nil, err
	}
	if slices.Contains(written, datadir.FileAge) {
		k.p.log.Info("start again with the new age key")
		k.p.rerun.restart()
	}
	secrets, err := k.p.dataDir.Secrets(k.p.passphrase)
	return secrets.Key, err
}

// readMoltSpeak returns the node's signing key and box key for MoltSpeak. It makes keys that do not exist.
func (k keyring) readMoltSpeak() (*signing.PrivateKey, *signing.BoxKey, error) {
	ctx, cancel := context.WithTimeout(context.Background(), changeTime)
	defer cancel()
	if _, err := k.p.keys.Update(ctx, datadir.Keys.AddMoltSpeak); err != nil {
		return nil, nil, err
	}
	return k.p.dataDir.MoltSpeakKeys()
}

func (k keyring) readRetired(fingerprint string) (*signing.PrivateKey, error) {
	_, digits, _ := strings.Cut(fingerprint, ":")
	return signing.ReadKeyFile(k.p.dataDir.RetiredKey(digits), k.p.passphrase)
}

// readFirst reads the signing key from which an agent id is derived. The key must be among the retired keys.
func (k keyring) readFirst(id wire.AgentID) (*signing.PrivateKey, error) {
	return signing.ReadKeyFile(k.p.dataDir.RetiredKey(id.KeyDigits()), k.p.passphrase)
}
