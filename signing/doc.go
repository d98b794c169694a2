// Package signing makes and checks the signatures of AgentMesh. It contains the canonical encodings of a JSON tree, the
// keys that an agent card may have, signatures over bytes and over trees, and the files that hold private keys. With
// other keys, it also encrypts and decrypts age files, NaCl boxes ([BoxKey]) and documents ([SharedKey]).
//
// The package works on trees ([wire.Value]), bytes and keys. It does not know messages, the owners of keys, or the
// rights of senders. Checks never read the clock: the caller passes the current time.
//
// To check what a peer sent, start with [ParsePublicKey] and [PublicKey.VerifyValue]. To sign, start with
// [ParsePrivateKey] or [ReadKeyFile] and [PrivateKey.SignValue].
//
// These rules hold in the whole package:
//
//   - The text of the key determines the algorithm, and the signature never does (AM-8). A refused key never becomes a
//     [PublicKey], so verification cannot forget a check.
//   - A signature covers one encoding of the tree as received. Of the five forms of AM-14, we sign only JCS.
//   - No error quotes a key or a signature, and a private key prints as [redacted].
//   - A [PublicKey], a [PrivateKey] and a [KeyCache] may be used by many goroutines at once.
//
// Numbers such as AM-8 are those of rules in docs/protocol.md, and numbers such as MS-13 are those of MoltSpeak's rules
// in docs/conformance/moltspeak.txt.
//
// This package is a part of the program, not an API for other modules: it may change with every commit.
package signing
