// Package message is the codec of A2A 1.0, the Agent2Agent protocol: it reads requests of the JSON-RPC and the
// HTTP+JSON binding into one form ([Call]), writes answers and errors of both, maps messages and tasks to payloads of
// the mesh, and makes, signs and verifies agent cards. It stores and sends nothing.
//
// Start with [ReadRPC] and [ReadREST]. Every function that reads text of a stranger bounds depth, number of values and
// lengths.
package message
