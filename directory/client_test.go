package directory_test

import (
	"errors"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/directory"
	"github.com/agentmesh/agentmesh/directory/operator"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/httpapi/apitest"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store/bolt"
)

func init() {
	directory.Operations = operator.Operations
	bolt.NoSync = true
}

const base = "https://directory.example/v1"

// TestOurClient drives the directory with the client library, in one process. A peer that pinned the first key follows
// two rotations (AM-11, AM-60).
func TestOurClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		db, err := bolt.Open(ctx, filepath.Join(t.TempDir(), "mesh.db"), bolt.Config{MinFree: -1, InitialMmapSize: -1})
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		edge := httpapi.New(httpapi.Config{PublicURL: "https://directory.example"})
		reg := directory.New(directory.Config{Store: db, BaseURL: base, Addresses: edge.Addresses()})
		reg.Mount(edge.Echo())
		transport := client.NewHTTP(client.HTTPConfig{})
		defer transport.Close()
		dir := client.NewDirectory(base, transport, client.InProcess(apitest.Check(t, edge.Internal())))
		cred := client.Credential("a-credential-of-ours")

		keys := make([]*signing.PrivateKey, 3)
		for i := range keys {
			if keys[i], err = signing.GenerateEd25519(); err != nil {
				t.Fatal(err)
			}
		}
		id := keys[0].Public().AgentID()
		card := wire.Obj(
			wire.Member{Key: "agentmesh", Value: wire.Text(wire.Version)},
			wire.Member{Key: "agent_id", Value: wire.Text(string(id))},
			wire.Member{Key: "name", Value: wire.Text("Sarah <&> \u2028")},
			wire.Member{Key: "endpoint", Value: wire.Text("https://sarah.example/agentmesh")},
			wire.Member{Key: "public_key", Value: wire.Text(keys[0].PublicText())},
			wire.Member{Key: "capabilities", Value: wire.Texts([]string{"scheduling"})},
			wire.Member{Key: "intents", Value: wire.Texts([]string{"mesh.schedule"})},
		)
		done, adopted, err := dir.Register(ctx, card, cred, keys[0])
		if err != nil || done.AgentID != id || string(adopted.JSON()) != string(card.JSON()) {
			t.Fatalf("Register = %+v, %v", done, err)
		}
		if rec, err := dir.Record(ctx, id); err != nil || rec.Verification.Key == nil || rec.Verification.ID != "derived" {
			t.Errorf("Record = %+v, %v", rec, err)
		}

		peers := client.NewCards(client.CardsConfig{Directories: []*client.Directory{dir}, HTTP: transport, Records: db.Records()})
		pinned, err := peers.Lookup(ctx, id, client.Origin{}, time.Now())
		if err != nil {
			t.Fatalf("Lookup = %v", err)
		}
		for i, key := range keys[1:] {
			time.Sleep(time.Hour)
			card = card.With("public_key", wire.Text(key.PublicText()))
			if _, err := dir.Rotate(ctx, card, cred, key, keys[i]); err != nil {
				t.Fatalf("Rotate = %v", err)
			}
		}
		// A later change of the card must not lose what the rotation proved.
		time.Sleep(time.Hour)
		card = card.With("description", wire.Text("changed since"))
		if _, err := dir.Renew(ctx, card, cred, keys[2]); err != nil {
			t.Fatalf("Renew = %v", err)
		}
		followed, changed, err := peers.Refresh(ctx, id, time.Now())
		if err != nil || !changed || followed.Key.Fingerprint() != keys[2].Public().Fingerprint() {
			t.Errorf("Refresh = %v, %v; want the third key in place of %s", changed, err, pinned.Key.Fingerprint())
		}

		found, err := dir.Search(ctx, client.Query{Text: "sarah", Limit: 5})
		if err != nil || len(found.Agents) != 1 {
			t.Errorf("Search = %+v, %v", found, err)
		}
		if err := dir.Withdraw(ctx, id, client.Credential("somebody-else-here")); err == nil {
			t.Error("Withdraw with another credential passes")
		}
		if err := dir.Withdraw(ctx, id, cred); err != nil {
			t.Errorf("Withdraw = %v", err)
		}
		if _, err := dir.Card(ctx, id); !errors.Is(err, client.ErrUnknownAgent) {
			t.Errorf("Card after Withdraw = %v", err)
		}
	})
}
