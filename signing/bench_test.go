package signing

import (
	"crypto/ed25519"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
)

// benchMessage is a message as the reference implementation sends it, about 600 bytes, without its signature.
const benchMessage = `{"agentmesh":"0.1.0","message_id":"msg_8f14e45fceea167a","conversation_id":"conv_c9f0f895fb98ab91",` +
	`"from":"am_45c48cce2e2d7fbd","to":"am_6512bd43d9caa6e0","timestamp":"2026-02-19T10:30:00.000Z","intent":"mesh.schedule",` +
	`"payload":{"action":"propose","event":{"title":"Coffee with Sarah","proposed_times":["2026-02-21T14:00:00-08:00",` +
	`"2026-02-22T10:00:00-08:00"],"duration":"30m","location":"Blue Bottle Coffee, Hayes Valley","notes":"Chris says hi — see you soon"},` +
	`"metadata":{"attempt":1,"client":"agentmesh-core"}}}`

func benchKey() *PrivateKey { return NewEd25519FromSeed(make([]byte, 32)) }

func BenchmarkCanonical(b *testing.B) {
	v, err := wire.Parse([]byte(benchMessage))
	if err != nil {
		b.Fatal(err)
	}
	for _, f := range Forms() {
		b.Run(f.String(), func(b *testing.B) {
			b.ReportAllocs()
			var buf []byte
			for b.Loop() {
				buf = AppendCanonical(buf[:0], v, f)
			}
		})
	}
}

// BenchmarkReadCanonicalise measures the cost of a message before its signature is checked. It must stay below a tenth
// of BenchmarkVerify/standard-library.
func BenchmarkReadCanonicalise(b *testing.B) {
	data := []byte(benchMessage)
	b.ReportAllocs()
	for b.Loop() {
		v, err := wire.Parse(data)
		if err != nil {
			b.Fatal(err)
		}
		Canonical(v, JCS)
	}
}

func BenchmarkVerify(b *testing.B) {
	v, err := wire.Parse([]byte(benchMessage))
	if err != nil {
		b.Fatal(err)
	}
	data := Canonical(v, JCS)
	b.Run("standard-library", func(b *testing.B) {
		private := ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))
		public, sig := private.Public().(ed25519.PublicKey), ed25519.Sign(private, data)
		b.ReportAllocs()
		for b.Loop() {
			if !ed25519.Verify(public, data, sig) {
				b.Fatal("refused")
			}
		}
	})
	for _, key := range keyOfEachKind(b) {
		b.Run(string(key.Public().Kind()), func(b *testing.B) {
			sig, err := key.Sign(data)
			if err != nil {
				b.Fatal(err)
			}
			now := time.Now()
			b.ReportAllocs()
			for b.Loop() {
				if err := key.Public().Verify(data, sig, AnyTime(), now); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkParsePublicKey(b *testing.B) {
	for _, key := range keyOfEachKind(b) {
		text := key.PublicText()
		cache := NewKeyCache(16)
		for name, parse := range map[string]func(string) (*PublicKey, error){"uncached": ParsePublicKey, "cached": cache.Parse} {
			b.Run(string(key.Public().Kind())+"/"+name, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if _, err := parse(text); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
