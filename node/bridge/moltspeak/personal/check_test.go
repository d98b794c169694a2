package personal

import "testing"

// TestStreetNeedsCapital: before an everyday word such as "drive", only a capitalized name makes an address, whatever
// the letter.
func TestStreetNeedsCapital(t *testing.T) {
	for text, want := range map[string]int{"6 eleves drive home": 0, "6 élèves drive home": 0, "6 Elm Drive": 1, "6 Élysée Drive": 1} {
		if found := Scan(text); len(found) != want {
			t.Errorf("%s: %v, want %d", text, found, want)
		}
	}
}

// TestAmountsAreNoPhoneNumbers: digits after the sign of a currency are an amount.
func TestAmountsAreNoPhoneNumbers(t *testing.T) {
	for text, want := range map[string]int{"030 1234567": 1, "$030 1234567": 0, "€030 1234567": 0} {
		if found := Scan(text); len(found) != want {
			t.Errorf("%s: %v, want %d", text, found, want)
		}
	}
}
