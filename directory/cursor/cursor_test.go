package cursor

import (
	"encoding/base64"
	"testing"
)

func FuzzCursor(f *testing.F) {
	key := []byte("a key of thirty-two bytes, always")
	good := Doc{Last: "am_x", Seq: 7, Tier: 2, Filters: make([]byte, len(Filters{}))}.seal(key)
	f.Add(good)
	f.Add(good[:20])
	f.Add(base64.RawURLEncoding.EncodeToString([]byte(`{"last":"am_x","seq":7,"f":null,"mac":null}`)))
	f.Add(base64.RawURLEncoding.EncodeToString([]byte(`{"LAST":"am_x","seq":-1}`)))
	f.Fuzz(func(t *testing.T, text string) {
		d, err := parse(text, key)
		if err != nil {
			return
		}
		if text != good && d.seal(key) != text {
			t.Errorf("parse(%q) = %+v, which is written otherwise", text, d)
		}
		if _, err := parse(text, []byte("another key")); err == nil {
			t.Errorf("parse(%q) passes under another key", text)
		}
	})
}
