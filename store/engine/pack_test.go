package engine

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"strings"
	"testing"
)

// packOnce packs fields as a row does.
func packOnce(fields []byte) []byte {
	p := newPacker()
	defer p.free()
	p.fields = append(p.fields, fields...)
	return bytes.Clone(p.pack())
}

// TestPack: fields that repeat themselves or the dictionary become shorter, and all survive.
func TestPack(t *testing.T) {
	for _, test := range []struct {
		fields string
		most   int
	}{
		{"", 1}, {"a", 3}, {strings.Repeat("word:", 1000), 100}, {dictionary, 100}, {dictionary[200:300], 30},
	} {
		block := packOnce([]byte(test.fields))
		if len(block) > test.most {
			t.Errorf("%d bytes, %.20q, take %d, want at most %d", len(test.fields), test.fields, len(block), test.most)
		}
		for _, buf := range [][]byte{nil, make([]byte, 0, 10_000)} {
			r := reader{b: block}
			if r.unpack(buf); r.err != nil || string(r.b) != test.fields {
				t.Errorf("%.20q became %.20q, %v", test.fields, r.b, r.err)
			}
		}
	}
}

// TestUnpackRefuses has blocks that no packer makes.
func TestUnpackRefuses(t *testing.T) {
	block := packOnce([]byte(dictionary[200:300] + "and the end"))
	for name, b := range map[string][]byte{
		"empty": nil, "no length": {0x80}, "cut short": block[:len(block)-1], "bytes after the end": append(bytes.Clone(block), 0),
		"larger than a row": {0x81, 0x80, 0x80, 0x80, 0x04, 0x00},
	} {
		r := reader{b: b}
		if r.unpack(nil); r.err == nil {
			t.Errorf("%s: %q", name, r.b)
		}
	}
}

func FuzzUnpack(f *testing.F) {
	f.Add(packOnce([]byte(dictionary[100:200])))
	f.Fuzz(func(t *testing.T, block []byte) {
		r := reader{b: block}
		if r.unpack(nil); r.err != nil {
			return
		}
		again := reader{b: packOnce(r.b)}
		if again.unpack(nil); again.err != nil || !bytes.Equal(again.b, r.b) {
			t.Errorf("%q became %q, %v", r.b, again.b, again.err)
		}
	})
}

// TestDictionary fails if the dictionary changes, because stored rows refer to it: then rowVersion must change.
func TestDictionary(t *testing.T) {
	if got := fmt.Sprintf("%d %08x", len(dictionary), crc32.ChecksumIEEE([]byte(dictionary))); got != "1898 4f30a42b" {
		t.Errorf("the dictionary is %s", got)
	}
}
