package personal

import (
	"bytes"
	"slices"
	"strings"
	"testing"
)

// samples are texts of several languages, with and without personal data, and with words in which \b differs from the
// start of a word.
var samples = []string{
	"", "0", "é", "née Smith, born 1990-01-02", "née 1990-01-02", "Dr. Jane Doe and Señora Ana María met Mr X.",
	"call me at 030 1234567, tel: +49 30 1234567 or fax 555-123-4567", "card 4111 1111 1111 1111, IBAN DE89 3702 0400 4405 3201 3000",
	"my name is Jane van der Berg; patient: José Núñez", "SSN 123-45-6789, passport no C01X00T47", "sort code 12-34-56, account no. 12345678",
	"Calle Mayor 12, via Roma 3, 221b Baker Street, 12 rue de la Paix, P.O. Box 12", "ip address: 8.8.8.8, client 2001:db8::1, 52.5200, 13.4050",
	"she was diagnosed with asthma and tested positive for flu; blood type: ab+", "jane [at] example [dot] com, jane.doe@example.com", strings.Repeat("_", 80) + "jane@example.com",
	"ViaäViaäVia x 12", "_born 1990-01-02 xborn 1990-01-02 1born 1990-01-02", "123-45-6789123-45-6789 123-45-6789", "\xff\xfe tel 030 1234567\xff",
	"Straße 12, Hauptstraße 12 a, Lange Straße 7", "AB123456C 12345678Z X1234567L 190 01 01 123 456 78 RSSMRA85T10A562S 123.456.789-09 2345 6789 0123",
}

// TestFindAll: an expression finds what package regexp finds.
func TestFindAll(t *testing.T) {
	all := strings.Join(samples, " ")
	texts := append(slices.Clone(samples), all, strings.ToUpper(all), strings.ToLower(all), strings.ReplaceAll(all, " ", ""))
	found := 0
	for i, p := range patterns() {
		if p.re.anchored != nil && p.re.starts == ([128]bool{}) {
			t.Errorf("pattern %d of %s starts with no character", i, p.kind)
		}
		for _, text := range texts {
			got, want := p.re.findAll(text), p.re.FindAllStringSubmatchIndex(text, -1)
			if !slices.EqualFunc(got, want, slices.Equal) {
				t.Errorf("pattern %d of %s in %q: %v, want %v", i, p.kind, text, got, want)
			}
			found += len(got)
		}
	}
	if found < 50 {
		t.Errorf("the texts have only %d matches", found)
	}
}

// BenchmarkScan measures English prose, base64, and text in which a match could start at every fifth byte.
func BenchmarkScan(b *testing.B) {
	for name, unit := range map[string]string{
		"prose": "We met 3 people at the office of the new x. ", "base64": "R3LDvMOfZSDkuJbnlYwg", "starts": "Viaä", "digits": "12 34-",
	} {
		text := string(bytes.Repeat([]byte(unit), 8<<10/len(unit)))
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				Scan(text)
			}
		})
	}
}
