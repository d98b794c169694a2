package signing_test

import (
	"fmt"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
)

// Example signs a message and checks it as its recipient does: with the key of the sender's card, over the tree as
// received.
func Example() {
	private := signing.NewEd25519FromSeed(make([]byte, 32))
	card := private.PublicText() // the sender publishes this

	draft := wire.Obj(wire.Member{Key: "to", Value: wire.Text("am_sarah")}, wire.Member{Key: "from", Value: wire.Text("am_chris")})
	signed, err := private.SignValue(draft)
	if err != nil {
		fmt.Println(err)
		return
	}

	received, err := wire.ParseObject(signed.JSON())
	if err != nil {
		fmt.Println(err)
		return
	}
	key, err := signing.ParsePublicKey(card)
	if err != nil {
		fmt.Println(err)
		return
	}
	verified, err := key.VerifyValue(received.Without("signature"), received.GetStr("signature"), signing.AnyTime(), time.Now())
	fmt.Printf("%s %s %v\n", verified.Form, verified.Canonical, err)
	// Output: jcs {"from":"am_chris","to":"am_sarah"} <nil>
}

// ExampleCanonical shows the bytes that a signature covers: the order of the keys does not matter.
func ExampleCanonical() {
	tree, err := wire.ParseObject([]byte(`{"to": "am_sarah", "from": "am_chris", "n": 1.0}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%s\n", signing.Canonical(tree, signing.JCS))
	// Output: {"from":"am_chris","n":1,"to":"am_sarah"}
}

// ExampleParsePublicKey reads the key of a card: its kind, the id that belongs to it, and what people compare.
func ExampleParsePublicKey() {
	key, err := signing.ParsePublicKey(signing.NewEd25519FromSeed(make([]byte, 32)).PublicText())
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(key.Kind(), key.AgentID())
	fmt.Println(key.Fingerprint())
	_, err = signing.ParsePublicKey("ssh-ed25519 AAAA")
	fmt.Println(err != nil)
	// Output:
	// ed25519 am_copdsqhgjnkjc4rardm2bv2bmk
	// ed25519:139e3940e64b5491722088d9a0d741628fc826e09475d341a780acde3c4b8070
	// true
}
