package message

import "testing"

func TestEndpoint(t *testing.T) {
	for in, want := range map[string]string{ // MS-49
		"https://a.example/x/message": "https://a.example/x/message", "https://a.example/moltspeak/v0.1": "https://a.example/moltspeak/v0.1/message",
		"https://a.example/moltspeak/": "https://a.example/moltspeak/v0.1/message", "https://a.example": "https://a.example/moltspeak/v0.1/message",
		"https://a.example/other": "https://a.example/other", "https://a.example/other/?a=b": "https://a.example/other/?a=b", "ftp://a.example": "", "/x": "",
	} {
		if got, err := Endpoint(in); got != want || (err != nil) != (want == "") {
			t.Errorf("Endpoint(%s) = %s, %v, want %s", in, got, err, want)
		}
	}
}
