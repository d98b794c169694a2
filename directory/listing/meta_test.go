package listing

import (
	"errors"
	"reflect"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

func TestMeta(t *testing.T) {
	at := time.Date(2026, 3, 1, 9, 30, 0, 123e6, time.UTC)
	card, err := wire.ParseObject([]byte(`{"name":"<b>"}`))
	if err != nil {
		t.Fatal(err)
	}
	for name, m := range map[string]Meta{
		"opaque":   {Current: wire.KeyChange{Since: at}},
		"probed":   {Head: Head{Derived: true, Endpoint: at, Alive: at.Add(time.Hour), Probed: at.Add(time.Hour), Misses: 2}, Current: wire.KeyChange{Since: at}},
		"old":      {Head: Head{Proven: time.UnixMilli(-1).UTC(), HandedOver: true}, Current: wire.KeyChange{Since: at}},
		"proven":   {Head: Head{Proven: at, Proof: "proof"}, Current: wire.KeyChange{Since: at, Proof: "proof", ProofText: "POST /agents\n"}},
		"replaced": {Head: Head{Replaced: at}, Current: wire.KeyChange{Since: at, Card: card}, Retired: []wire.KeyChange{{PublicKey: "ed25519:x", Since: at, Retired: at, Card: card}}},
	} {
		m.KeySince = m.Current.Since
		c := store.Card{ID: "am_1", Meta: m.Encode()}
		if got, err := ParseMeta(c); err != nil || !reflect.DeepEqual(got, m) {
			t.Errorf("%s: %+v became %+v, %v", name, m, got, err)
		}
		if got, err := ParseHead(c); err != nil || got != m.Head {
			t.Errorf("%s: the head became %+v, %v", name, got, err)
		}
		head := len(Meta{Head: m.Head, Current: wire.KeyChange{Since: at}}.Encode())
		for n := range c.Meta {
			if _, err := ParseMeta(store.Card{ID: "am_1", Meta: c.Meta[:n]}); n != head && !errors.Is(err, store.ErrDamaged) {
				t.Errorf("%s, cut to %d of %d bytes: %v", name, n, len(c.Meta), err)
			}
		}
	}
}
