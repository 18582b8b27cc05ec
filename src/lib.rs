//! memspy
