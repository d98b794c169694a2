package client

import (
	"crypto/rand"
	"fmt"
	"log/slog"
)

// Credential is the bearer token that owns a card in a directory (AM-56). It prints as [redacted]; only string(c) and
// the JSON form contain the secret.
type Credential string

// NewCredential returns a credential of more than 256 random bits.
func NewCredential() Credential { return Credential(rand.Text() + rand.Text()) }

const redacted = "[redacted]"

func (c Credential) String() string             { return redacted }
func (c Credential) Format(s fmt.State, _ rune) { fmt.Fprint(s, redacted) }
func (c Credential) LogValue() slog.Value       { return slog.StringValue(redacted) }
