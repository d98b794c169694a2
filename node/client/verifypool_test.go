package client

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp/armor"
	openpgp "github.com/ProtonMail/go-crypto/openpgp/v2"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
)

func openPGPKey(t *testing.T) *signing.PublicKey {
	t.Helper()
	entity, err := openpgp.NewEntity("Alice", "", "alice@example.com", nil)
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	w, err := armor.Encode(&text, "PGP PUBLIC KEY BLOCK", nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(entity.Serialize(w), w.Close()); err != nil {
		t.Fatal(err)
	}
	key, err := signing.ParsePublicKey(text.String())
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// TestVerifyPool checks that slots are limited, that one OpenPGP key takes only one of them, that all OpenPGP keys
// together leave half of them, and that a sender that waits too long is refused (THREATS 27).
func TestVerifyPool(t *testing.T) {
	slow, slow2, fast := openPGPKey(t), openPGPKey(t), key(1).Public()
	synctest.Test(t, func(t *testing.T) {
		p := &verifyPool{slots: make(chan struct{}, 2), slow: newLimiter(1, 1)}
		enter := func(k *signing.PublicKey) func() {
			t.Helper()
			release, err := p.acquire(t.Context(), k)
			if err != nil {
				t.Fatalf("enter() = %v", err)
			}
			return release
		}
		full := func(what string, k *signing.PublicKey) {
			t.Helper()
			begun := time.Now()
			_, err := p.acquire(t.Context(), k)
			if took := time.Since(begun); !errors.Is(err, wire.ErrUnavailable) || took != poolWait {
				t.Errorf("%s: %v after %v, want ErrUnavailable after %v", what, err, took, poolWait)
			}
		}
		leaveSlow := enter(slow)
		full("the same OpenPGP key", slow)
		full("another OpenPGP key", slow2)
		leaveFast := enter(fast) // at once, because the callers that gave up hold no slot
		full("a third", fast)

		ctx, cancel := context.WithCancel(t.Context())
		go func() { time.Sleep(time.Second); cancel() }()
		begun := time.Now()
		if _, err := p.acquire(ctx, fast); !errors.Is(err, wire.ErrUnavailable) || time.Since(begun) != time.Second {
			t.Errorf("a caller that gave up: %v after %v", err, time.Since(begun))
		}
		go func() { time.Sleep(time.Second); leaveSlow() }()
		enter(slow2)()
		leaveFast()
		if len(p.slots) != 0 || len(p.slow.all) != 0 || len(p.slow.hosts) != 0 {
			t.Errorf("%d slots, %d slow slots and %d keys were not released", len(p.slots), len(p.slow.all), len(p.slow.hosts))
		}
	})
}

// TestFullPoolIsNoVerdict checks that if the pool is full, neither a message nor a reply counts as badly signed: the
// sender is asked to try again, and our message is sent again (AM-18).
func TestFullPoolIsNoVerdict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newListing()
		l.put(sarah, key(1))
		v := &Verifier{Cards: NewCards(CardsConfig{Directories: []*Directory{l.at(home)}, HTTP: NewHTTP(HTTPConfig{}), Records: records(t)})}
		peer, err := v.Cards.Find(t.Context(), sarah, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		for range cap(v.Cards.pool.slots) {
			v.Cards.pool.slots <- struct{}{}
		}
		m := signMessage(t, sarah, "am_me", key(1), time.Now())
		_, err = v.Authenticate(t.Context(), m, Origin{}, time.Now())
		if refusal, ok := errors.AsType[*wire.Error](err); !ok || !errors.Is(err, wire.ErrUnavailable) || refusal.Retry != true || refusal.RetryAfter != time.Second {
			t.Errorf("Authenticate() = %v, want ErrUnavailable and when to come back", err)
		}
		sent := signMessage(t, "am_me", sarah, key(50), time.Now())
		_, err = v.VerifyReply(t.Context(), sent, m, peer, time.Now())
		if again, ok := errors.AsType[*SendError](err); !ok || !again.Retry || !again.Processed || errors.Is(err, ErrReplyUnverified) {
			t.Errorf("Reply() = %v, want another attempt", err)
		}
		<-v.Cards.pool.slots
		if _, err := v.Authenticate(t.Context(), m, Origin{}, time.Now()); err != nil {
			t.Errorf("Authenticate() with a free slot = %v", err)
		}
	})
}
