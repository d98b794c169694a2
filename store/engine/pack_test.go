package engine

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// TestPack packs and unpacks fields that repeat themselves near and far, the dictionary, and nothing.
func TestPack(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	random := make([]byte, 3*maxBack)
	for i := range random {
		random[i] = byte(rng.Uint32())
	}
	for _, fields := range [][]byte{
		nil, []byte("a"), []byte("abcd"), bytes.Repeat([]byte("a"), 1000), bytes.Repeat([]byte("abc"), 2*maxBack), random, random[:15], random[:270],
		slices.Concat(random[:maxBack], random[:maxBack]), slices.Concat(random[:maxBack+20], random[:100]), slices.Concat(random[:600], random[:600]),
		[]byte(dictionary), []byte(dictionary[len(dictionary)-10:] + dictionary), []byte(dictionary[3:7]),
	} {
		checkPack(t, fields)
	}
	for range 2000 {
		var fields []byte
		for range rng.IntN(20) {
			part, n := random[:300], rng.IntN(60)
			if rng.IntN(2) == 0 {
				part = []byte(dictionary)
			}
			at := rng.IntN(len(part) - n)
			fields = append(fields, part[at:at+n]...)
		}
		checkPack(t, fields)
	}
}

func FuzzPack(f *testing.F) {
	f.Add([]byte(strings.Repeat("word:", 5)))
	f.Fuzz(func(t *testing.T, fields []byte) { checkPack(t, fields) })
}

// checkPack checks that fields survive packing, also a part of them.
func checkPack(t *testing.T, fields []byte) {
	t.Helper()
	p := newPacker()
	p.b = append(p.b, fields...)
	row := p.appendTo([]byte{rowVersion})
	if most := 5 + len(fields) + len(fields)/200; len(row) > most {
		t.Fatalf("%d bytes are packed as %d", len(fields), len(row))
	}
	r := readRow(row)
	r.fields()
	if err := r.err; err != nil || !bytes.Equal(r.b, fields) {
		t.Fatalf("%q = %q, %v", fields, r.b, err)
	}
	for enough := 0; enough < len(fields); enough += 1 + len(fields)/7 {
		r := readRow(row)
		size := r.packed()
		r.unpack(make([]byte, size+slack), size, enough)
		if r.err != nil || len(r.b) < enough || !bytes.HasPrefix(fields, r.b) {
			t.Fatalf("the first %d bytes of %q = %q, %v", enough, fields, r.b, r.err)
		}
	}
}

// TestUnpackRefuses has packed fields that no packer makes.
func TestUnpackRefuses(t *testing.T) {
	for name, row := range map[string]string{
		"no length":                  "",
		"more than the bytes can be": "\xff\xff\x03\x10a",
		"literal bytes cut short":    "\x05\x50abcd",
		"long literal cut short":     "\x20\xf0",
		"no distance":                "\x05\x10a\x01",
		"distance 0":                 "\x05\x10a\x00\x00",
		"before the dictionary":      "\x05\x10a\xff\xff",
		"beyond the dictionary":      "\x05\x10a\x03\x00",
		"longer than its length":     "\x05\x10a\x01\x00\x10b",
		"shorter than its length":    "\x09\x10a\x01\x00",
		"bytes after the end":        "\x01\x10aa",
	} {
		r := readRow([]byte("\x01" + row))
		r.fields()
		if r.err == nil {
			t.Errorf("%s: %q", name, r.b)
		}
	}
}

// TestDictionary fails if the dictionary changes, because stored rows refer to it: then rowVersion must change.
func TestDictionary(t *testing.T) {
	if got := fmt.Sprintf("%d %08x", len(dictionary), crc32.ChecksumIEEE([]byte(dictionary))); got != "1898 4f30a42b" {
		t.Errorf("the dictionary is %s", got)
	}
}
