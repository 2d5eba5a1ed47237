//! Elements as bytes: what files hold.

use napkin_tensor::{DType, Device, Error, Runtime};

#[test]
fn bytes_are_the_elements_of_the_view() {
    let rt = Runtime::new(Device::Cpu);
    let base = rt.tensor(&[1.0, -2.0, 3.5, 0.0, 5.0, -6.0], &[3, 2], DType::F32).unwrap();
    let row = base.narrow(0, 1, 1).unwrap();
    let expected: Vec<u8> = [3.5f32, 0.0].iter().flat_map(|x| x.to_ne_bytes()).collect();
    assert_eq!(row.with_bytes(<[u8]>::to_vec).unwrap(), expected);

    row.with_bytes_mut(|bytes| bytes[..4].copy_from_slice(&(-7.25f32).to_ne_bytes())).unwrap();
    assert_eq!(base.to_vec().unwrap(), [1.0, -2.0, -7.25, 0.0, 5.0, -6.0]);

    let empty = base.narrow(0, 3, 0).unwrap();
    assert_eq!(empty.with_bytes(<[u8]>::len).unwrap(), 0);
}

#[test]
fn every_dtype_has_as_many_bytes_as_it_says() {
    let rt = Runtime::new(Device::Cpu);
    for dtype in DType::ALL {
        let tensor = rt.ones(&[3, 5], dtype).unwrap();
        assert_eq!(tensor.with_bytes(<[u8]>::len).unwrap() as u64, 15 * dtype.size_in_bytes(), "{dtype}");
        tensor.with_bytes_mut(|bytes| bytes.fill(0)).unwrap();
        assert_eq!(tensor.to_vec().unwrap(), [0.0; 15], "{dtype}");
    }
}

#[test]
fn bytes_are_refused_where_there_are_none_in_order() {
    let rt = Runtime::new(Device::Cpu);
    let turned = rt.ones(&[2, 3], DType::F32).unwrap().transpose(0, 1).unwrap();
    let refused = turned.with_bytes(<[u8]>::len).unwrap_err();
    assert!(refused.to_string().contains("contiguous"), "{refused}");
    assert!(turned.with_bytes_mut(|_| ()).is_err());

    let meta = Runtime::new(Device::Meta).ones(&[2], DType::F32).unwrap();
    assert_eq!(meta.with_bytes(<[u8]>::len), Err(Error::NoData { op: "with_bytes" }));

    let leaf = rt.ones(&[2], DType::F32).unwrap().require_grad().unwrap();
    assert_eq!(leaf.with_bytes_mut(|_| ()), Err(Error::InPlaceOnGraph { op: "with_bytes_mut" }));
    assert!(leaf.detach().with_bytes_mut(|_| ()).is_ok());
}

#[test]
fn a_saved_tensor_that_was_overwritten_is_noticed() {
    let rt = Runtime::new(Device::Cpu);
    let x = rt.tensor(&[1.0, 2.0], &[2], DType::F32).unwrap().require_grad().unwrap();
    let loss = x.mul(&x).unwrap().sum_all().unwrap();
    x.detach().with_bytes_mut(|bytes| bytes.fill(0)).unwrap();
    assert!(matches!(loss.backward(), Err(Error::SavedWasChanged { .. })));
}
